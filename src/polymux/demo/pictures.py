"""The application that reads the text in pictures."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from PIL import Image

from polymux.demo.inference import Infer, Reference
from polymux.demo.message import Finding
from polymux.demo.ocr import Line, alphabet, read
from polymux.demo.packages import package_file
from polymux.demo.workload import Stop, Workload

__all__ = ["PAGE", "PRINTED", "Pictures"]

PAGE = "page.png"
PRINTED = (
    "Region-based segmentation",
    "Let us first determine markers of the coins and the",
    "background. These markers are pixels that we can label",
    "unambiguously as either object or background. Here,",
    "the markers are found at the two extreme parts of the",
    "histogram of grey values:",
    ">>> markers = np.zeros_like(coins)",
)
"""What stands on the photographed page, in scikit-image's ``page.png``."""

_ENOUGH = 0.9
_PICTURES = {
    PAGE: ("scikit-image", "skimage/data/page.png"),
    "logo2.png": ("matplotlib", "matplotlib/mpl-data/sample_data/logo2.png"),
    "astronaut.png": ("scikit-image", "skimage/data/astronaut.png"),
    "coffee.png": ("scikit-image", "skimage/data/coffee.png"),
    "rocket.jpg": ("scikit-image", "skimage/data/rocket.jpg"),
    "grace_hopper.jpg": ("matplotlib", "matplotlib/mpl-data/sample_data/grace_hopper.jpg"),
}
"""Photographs with and without text."""


class Pictures(Workload):
    """Reads one picture after the other: a page of text, a logo, photographs with little or no text."""

    models = ("detect_text", "read_text")
    clients = 1

    def __init__(self) -> None:
        self._pictures = {
            name: Image.open(package_file(package, path)).convert("RGB")
            for name, (package, path) in _PICTURES.items()
        }
        self._characters: tuple[str, ...] = ()
        self._expected: dict[str, list[str]] = {}
        self._same: list[bool] = []
        self._page: list[str] = []

    def prepare(self, reference: Reference) -> None:
        """Read each picture with the models run directly."""
        self._characters = alphabet(reference.metadata("read_text", "character"))
        for name, picture in self._pictures.items():
            self._expected[name] = _texts(read(picture, self._characters, reference))

    def work(self, client: int, infer: Infer, stop: Stop, note: Callable[[str], None]) -> None:
        """Read all pictures again and again, each client from another one on."""
        start = client * len(self._pictures) // self.clients
        names = list(self._pictures)
        while True:
            for name in names[start:] + names[:start]:
                texts = _texts(read(self._pictures[name], self._characters, infer))
                self._same.append(texts == self._expected[name])
                if name == PAGE:
                    self._page = texts
                note(f"{name}: " + (f"“{max(texts, key=len)}”" if texts else "no text"))
                if stop(0):
                    return

    def findings(self) -> tuple[Finding, ...]:
        """Compare with the models run directly, and the page with what is printed there."""
        printed, found = "\n".join(PRINTED), "\n".join(self._page)
        share = difflib.SequenceMatcher(None, printed, found, autojunk=False).ratio()
        return (
            Finding(
                "text of each picture, against the models run directly",
                f"{sum(self._same):,} of {len(self._same):,} pictures the same",
                bool(self._same) and all(self._same),
            ),
            Finding(
                f"text of the photographed page ({PAGE}), against what is printed there",
                f"{share:.1%} alike" if self._page else "not read",
                share >= _ENOUGH,
            ),
        )


def _texts(lines: list[Line]) -> list[str]:
    return [line.text for line in lines]
