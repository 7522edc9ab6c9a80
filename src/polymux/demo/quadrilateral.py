"""Rotated rectangles around pixels, and cutting them out of a picture."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.spatial import ConvexHull, QhullError

__all__ = ["Corners", "cut_out", "grown", "smallest_rectangle"]

Corners = NDArray[np.float64]
"""Four corners (x, y) in pixels, shape (4, 2), clockwise from the upper left."""


def smallest_rectangle(points: NDArray[np.float64]) -> Corners | None:
    """Return the rectangle of least area around points; None when they lie on a line.

    Parameters
    ----------
    points : ndarray, float64 (n, 2)
        Pixels (x, y).

    References
    ----------
    H. Freeman, R. Shapira, "Determining the minimum-area encasing rectangle for an arbitrary closed curve",
    CACM 18 (1975): one of its sides lies on a side of the convex hull.
    """
    try:
        hull = points[ConvexHull(points).vertices]
    except QhullError:
        return None
    sides = np.roll(hull, -1, axis=0) - hull
    angles = np.unique(np.arctan2(sides[:, 1], sides[:, 0]) % (math.pi / 2))
    rectangles = [_rectangle_at(hull, float(angle)) for angle in angles]
    return min(rectangles, key=_area)


def grown(corners: Corners, ratio: float) -> Corners:
    """Return a rectangle with its sides moved outwards by ``ratio * area / perimeter``."""
    width, height = _extents(corners)
    distance = ratio * width * height / (2 * (width + height))
    right = (corners[1] - corners[0]) / width * distance
    down = (corners[3] - corners[0]) / height * distance
    moved: Corners = corners + np.array([-right - down, right - down, right + down, down - right])
    return moved


def cut_out(picture: Image.Image, corners: Corners, height: int) -> Image.Image:
    """Return what a rectangle holds, turned upright and scaled to `height` pixels; its width is a multiple of 8."""
    across, down = _extents(corners)
    width = max(16, round(height * across / down / 8) * 8)
    upper_left, upper_right, lower_right, lower_left = corners
    quad = (*upper_left, *lower_left, *lower_right, *upper_right)
    return picture.transform((width, height), Image.Transform.QUAD, quad, Image.Resampling.BICUBIC)


def _rectangle_at(hull: NDArray[np.float64], angle: float) -> Corners:
    axes = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    turned = hull @ axes
    (left, top), (right, bottom) = turned.min(axis=0), turned.max(axis=0)
    corners = np.array([[left, top], [right, top], [right, bottom], [left, bottom]]) @ axes.T
    return np.roll(corners, -int(np.argmin(corners.sum(axis=1))), axis=0)


def _extents(corners: Corners) -> tuple[float, float]:
    return math.dist(corners[0], corners[1]), math.dist(corners[0], corners[3])


def _area(corners: Corners) -> float:
    width, height = _extents(corners)
    return width * height
