"""What the particle filter sees: a bright disk that moves on a dark ground, in noise."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

RADIUS = 5
BACKGROUND, OBJECT, NOISE = 100.0, 228.0, 45.0
"""Brightness, as in Rodinia, and its standard deviation."""
TURN = 1 / 30
"""How far the object goes on its way in an image, as an angle: 3 pixels along each axis at most, in images of 256."""


def disk() -> NDArray[np.float32]:
    """Ones where a disk of `RADIUS` is, (2 RADIUS + 1) x (2 RADIUS + 1)."""
    distance = np.arange(-RADIUS, RADIUS + 1)
    inside: NDArray[np.bool_] = distance[:, None] ** 2 + distance**2 <= RADIUS**2
    return inside.astype(np.float32)


def path_of(frames: int, side: int) -> NDArray[np.float64]:
    """Make the way of the object: an eight around the middle of square images.

    Returns
    -------
    (frames, 2) ndarray of float64, pixels
        x and y of its centre, from the upper left corner.
    """
    angle = TURN * (np.arange(frames) + 1)
    eight: NDArray[np.float64] = np.stack([np.sin(angle), np.sin(2 * angle) / 2], axis=1)
    return side / 2 + 0.35 * side * eight


def images_of(path: NDArray[np.float64], side: int, random: np.random.Generator) -> NDArray[np.float32]:
    """Make the images, of whole numbers from 0 to 255."""
    images = np.full((len(path), side, side), BACKGROUND)
    centres = np.arange(side) + 0.5
    for image, (x, y) in zip(images, path, strict=True):
        image[(centres[:, None] - y) ** 2 + (centres - x) ** 2 <= RADIUS**2] = OBJECT
    images += NOISE * random.standard_normal(images.shape)
    whole: NDArray[np.float64] = np.clip(np.rint(images), 0, 255)
    return whole.astype(np.float32)
