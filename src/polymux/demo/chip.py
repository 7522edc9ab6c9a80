"""A chip that becomes warm: what one time step computes, and the same in NumPy to check it.

References
----------
W. Huang et al., "HotSpot: a compact thermal modeling methodology for early-stage VLSI design", IEEE TVLSI 14 (2006).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

__all__ = ["AMBIENT", "Chip"]

AMBIENT = 80.0
"""Temperature of the surroundings, and of the chip at first, in degrees Celsius."""

Plate = NDArray[np.float32]

_EDGE_LENGTH = 0.016  # m
_THICKNESS = 0.0005  # m
_HEAT_CAPACITY = 1.75e6 * 0.5  # J/(m3 K), of which half counts
_CONDUCTIVITY = 100.0  # W/(m K)
_POWER_DENSITY = 3.0e7  # W/m2, of a part that works at full load
_STEP_S = 0.001 / (3.0e6 / (_THICKNESS * _HEAT_CAPACITY))
_PARTS = (
    # rows and columns from, to as parts of the edge length; load
    (0.06, 0.30, 0.06, 0.28, 1.00),
    (0.06, 0.30, 0.38, 0.60, 0.35),
    (0.06, 0.30, 0.70, 0.92, 0.80),
    (0.40, 0.56, 0.06, 0.92, 0.15),
    (0.66, 0.92, 0.06, 0.28, 0.55),
    (0.66, 0.92, 0.38, 0.60, 0.90),
    (0.66, 0.92, 0.70, 0.92, 0.05),
)
_BLOCK_ROWS = 64  # so that what one block needs stays in the cache


class Chip:
    """A square chip of six cores and a cache between them.

    Parameters
    ----------
    side : int
        Cells along an edge.

    Attributes
    ----------
    scalars : dict of str to float
        Arguments of the kernel ``stencil``.
    power : ndarray, float32 (side, side)
        Heat that each cell makes, in W.
    """

    def __init__(self, side: int) -> None:
        area = (_EDGE_LENGTH / side) ** 2
        self.scalars = {
            "step": _STEP_S,
            "capacity": _HEAT_CAPACITY * _THICKNESS * area,
            "rx": 1.0 / (2.0 * _CONDUCTIVITY * _THICKNESS),
            "ry": 1.0 / (2.0 * _CONDUCTIVITY * _THICKNESS),
            "rz": _THICKNESS / (_CONDUCTIVITY * area),
            "ambient": AMBIENT,
        }
        self.power: Plate = np.zeros((side, side), np.float32)
        for top, bottom, left, right, load in _PARTS:
            rows, columns = (
                slice(int(top * side), int(bottom * side)),
                slice(int(left * side), int(right * side)),
            )
            self.power[rows, columns] = load * _POWER_DENSITY * area

    def start(self) -> Plate:
        """Return the temperatures at first, in degrees Celsius."""
        return np.full(self.power.shape, AMBIENT, np.float32)

    def reference(self) -> Iterator[Plate]:
        """Compute time steps with NumPy: the kernel's operations, in its order, in float32.

        Yields
        ------
        ndarray, float32 (side, side)
            Temperatures after each step; overwritten two steps later.
        """
        now, after = (np.pad(self.start(), 1, mode="edge") for _ in range(2))
        while True:
            for first in range(0, len(self.power), _BLOCK_ROWS):
                self._advance(now, after, first, min(first + _BLOCK_ROWS, len(self.power)))
            after[0], after[-1] = after[1], after[-2]  # beyond an edge it is as warm as at the edge
            after[:, 0], after[:, -1] = after[:, 1], after[:, -2]
            now, after = after, now
            yield now[1:-1, 1:-1]

    def _advance(self, now: Plate, after: Plate, first: int, last: int) -> None:
        """Compute rows `first` to `last` of the next step; the arrays have a margin of one cell."""
        f32, given = np.float32, self.scalars
        centre = now[first + 1 : last + 1, 1:-1]
        twice = centre + centre
        total = now[first:last, 1:-1] + now[first + 2 : last + 2, 1:-1]
        total -= twice
        total *= f32(1 / given["ry"])
        total += self.power[first:last]
        horizontal = now[first + 1 : last + 1, :-2] + now[first + 1 : last + 1, 2:]
        horizontal -= twice
        horizontal *= f32(1 / given["rx"])
        total += horizontal
        sink = np.subtract(f32(given["ambient"]), centre, out=twice)
        sink *= f32(1 / given["rz"])
        total += sink
        total *= f32(given["step"] / given["capacity"])
        np.add(centre, total, out=after[first + 1 : last + 1, 1:-1])
