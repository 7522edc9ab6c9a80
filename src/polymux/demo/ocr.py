"""Reading the text in a picture: detection, one rectangle per line, recognition of each.

References
----------
M. Liao et al., "Real-time scene text detection with differentiable binarization", AAAI 2020 (detection).
A. Graves et al., "Connectionist temporal classification", ICML 2006 (decoding).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

from polymux.demo.inference import Infer
from polymux.demo.quadrilateral import Corners, cut_out, grown, smallest_rectangle

__all__ = ["Line", "alphabet", "read"]

_LONGER_SIDE = 768  # pixels; both sides become multiples of _STRIDE
_STRIDE = 32
_TEXT_PROBABILITY = 0.3  # of a pixel
_LINE_PROBABILITY = 0.5  # of a line, the mean of its pixels
_LINE_CONFIDENCE = 0.6  # of what was read, the mean of its characters
_GROWTH = 1.6  # the network marks the core of a line only
_SMALLEST = 3.0  # pixels
_LINE_HEIGHT = 48


@dataclass(frozen=True, slots=True)
class Line:
    """A line of text in a picture.

    Attributes
    ----------
    text : str
        What was read.
    confidence : float
        Mean probability of its characters.
    corners : ndarray, float64 (4, 2)
        Where, in pixels.
    """

    text: str
    confidence: float
    corners: Corners


def alphabet(characters: str) -> tuple[str, ...]:
    """Return the text of each class of the recognition model, from the list in its metadata (one a line)."""
    return ("", *characters.removesuffix("\n").split("\n"), " ")  # class 0 is CTC's blank


def read(picture: Image.Image, characters: Sequence[str], infer: Infer) -> list[Line]:
    """Read a picture's lines, from top to bottom; one inference to find them, one for each.

    Parameters
    ----------
    picture : PIL.Image.Image
        In RGB.
    characters : sequence of str
        Text of each class; see `alphabet`.
    infer : Infer
        Runs ``detect_text`` and ``read_text``.
    """
    scale = _LONGER_SIDE / max(picture.size)
    width, height = (max(_STRIDE, round(side * scale / _STRIDE) * _STRIDE) for side in picture.size)
    resized = picture.resize((width, height), Image.Resampling.BILINEAR)
    (probabilities,) = infer("detect_text", {"x": _tensor(resized)}).values()
    lines = []
    for corners in _find(probabilities[0, 0]):
        place = corners * (picture.width / width, picture.height / height)
        (classes,) = infer("read_text", {"x": _tensor(cut_out(picture, place, _LINE_HEIGHT))}).values()
        text, confidence = _decode(classes[0], characters)
        if text.strip() and confidence >= _LINE_CONFIDENCE:
            lines.append(Line(text, confidence, place))
    return lines


def _tensor(picture: Image.Image) -> NDArray[np.float32]:
    """Return a picture as the models want it: (1, 3, height, width), blue first, -1 to 1."""
    pixels = np.asarray(picture, np.float32)[:, :, ::-1] / np.float32(127.5) - np.float32(1)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1)[np.newaxis])


def _find(probabilities: NDArray[np.float32]) -> list[Corners]:
    """Return a rectangle for each connected region of text, from top to bottom."""
    regions, _ = ndimage.label(
        ndimage.binary_dilation(probabilities > _TEXT_PROBABILITY, np.ones((2, 2))), np.ones((3, 3))
    )
    found = []
    for number, place in enumerate(ndimage.find_objects(regions), start=1):
        inside = regions[place] == number
        if probabilities[place][inside].mean() < _LINE_PROBABILITY:
            continue
        rows, columns = np.nonzero(inside)
        corners = smallest_rectangle(
            np.stack([columns + place[1].start, rows + place[0].start], axis=1).astype(np.float64)
        )
        if corners is None or min(np.ptp(corners[:, 0]), np.ptp(corners[:, 1])) < _SMALLEST:
            continue
        found.append(grown(corners, _GROWTH))
    return sorted(found, key=lambda corners: float(corners[:, 1].mean()))


def _decode(classes: NDArray[np.float32], characters: Sequence[str]) -> tuple[str, float]:
    """Decode greedily: the likeliest class of each step, repetitions once, without blanks."""
    best = classes.argmax(axis=1)
    kept = (best != 0) & (best != np.concatenate([[-1], best[:-1]]))
    if not kept.any():
        return "", 0.0
    text = "".join(characters[index] for index in best[kept])
    return text, float(classes.max(axis=1)[kept].mean())
