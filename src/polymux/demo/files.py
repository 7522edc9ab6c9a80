"""The application that names the types of files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from polymux.demo.failure import DemoFailed
from polymux.demo.file_type import FileTypes
from polymux.demo.inference import Infer, Reference
from polymux.demo.message import Finding
from polymux.demo.packages import files_of
from polymux.demo.workload import Stop, Workload

__all__ = ["LABELS", "Files", "sample"]

LABELS = {
    ".bz2": "bzip",
    ".c": "c",
    ".css": "css",
    ".csv": "csv",
    ".f90": "fortran",
    ".gif": "gif",
    ".gz": "gzip",
    ".h": "c",
    ".jpg": "jpeg",
    ".js": "javascript",
    ".json": "json",
    ".npy": "npy",
    ".npz": "npz",
    ".onnx": "onnx",
    ".pdf": "pdf",
    ".pkl": "pickle",
    ".png": "png",
    ".py": "python",
    ".pyc": "pythonbytecode",
    ".pyi": "python",
    ".rst": "rst",
    ".so": "elf",
    ".svg": "svg",
    ".tif": "tiff",
    ".ttf": "ttf",
    ".xml": "xml",
}
"""Extension -> Magika's label for such files."""

_PACKAGES = (
    "numpy",
    "scipy",
    "matplotlib",
    "scikit-image",
    "onnxruntime",
    "silero-vad",
    "rapidocr-onnxruntime",
)
_PER_EXTENSION = 3
_SMALLEST_NBYTES = 200
_PERIOD_S = 0.04  # between two files of one client
_ENOUGH = 0.9


def sample() -> list[tuple[Path, str]]:
    """Choose files of every kind in `LABELS` that the installed packages have, the same ones each time.

    Returns
    -------
    list of (Path, str)
        A file and its label; neighbours are of different kinds.
    """
    chosen: list[tuple[int, str, Path]] = []
    for extension in LABELS:
        found = [
            file
            for package in _PACKAGES
            for file in files_of(package, extension)
            if file.stat().st_size >= _SMALLEST_NBYTES
        ]
        apart = max(1, len(found) // _PER_EXTENSION)
        for place, file in enumerate(found[::apart][:_PER_EXTENSION]):
            chosen.append((place, extension, file))
    return [(file, LABELS[extension]) for _, extension, file in sorted(chosen)]


class Files(Workload):
    """Names the types of files of the installed packages, some twenty-five a second and client."""

    models = ("name_file_type",)
    clients = 2

    def __init__(self) -> None:
        self._types = FileTypes.of_package()
        self._sample = sample()
        if not self._sample:
            raise DemoFailed(
                f"none of the packages {', '.join(_PACKAGES)} is installed; the demo needs their files"
            )
        self._expected: dict[Path, str] = {}
        self._same: list[bool] = []
        self._answers: dict[Path, str] = {}

    def prepare(self, reference: Reference) -> None:
        """Name each file with the model run directly."""
        for file, _ in self._sample:
            self._expected[file] = self._types.name(file, reference)

    def work(self, client: int, infer: Infer, stop: Stop, note: Callable[[str], None]) -> None:
        """Name all files again and again, each client from another one on."""
        start = client * len(self._sample) // self.clients
        while True:
            for file, _ in self._sample[start:] + self._sample[:start]:
                label = self._types.name(file, infer)
                self._same.append(label == self._expected[file])
                self._answers[file] = label
                note(f"{file.name}: {label}")
                if stop(_PERIOD_S):
                    return

    def findings(self) -> tuple[Finding, ...]:
        """Compare with the model run directly, and with what the files' names say."""
        known = [(file, label) for file, label in self._sample if file in self._answers]
        right = sum(self._answers[file] == label for file, label in known)
        return (
            Finding(
                "type of each file, against the model run directly",
                f"{sum(self._same):,} of {len(self._same):,} the same",
                bool(self._same) and all(self._same),
            ),
            Finding(
                "type of each file, against its name",
                f"{right} of {len(known)} files as the name says",
                bool(known) and right >= _ENOUGH * len(known),
            ),
        )
