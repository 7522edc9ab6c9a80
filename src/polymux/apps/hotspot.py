"""hotspot: how warm a chip becomes, from the power of its parts.

References
----------
W. Huang et al., "HotSpot: a compact thermal modeling methodology for early-stage VLSI design", IEEE TVLSI 14 (2006).
S. Che et al., "Rodinia: a benchmark suite for heterogeneous computing", IISWC 2009.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from math import isqrt
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from polymux.apps.application import Application, Arrays, require_close
from polymux.apps.bands import bands
from polymux.apps.lane import Lane
from polymux.kernel.builtin.stencil import hotspot_constants

STEPS = 64
ROUND = 16
"""Steps between two exchanges of the bands' edges."""


class Hotspot(Application):
    """Explicit time steps of the heat equation on a square chip, in float32, by bands of rows.

    Parameters
    ----------
    side : int
        Cells along an edge.
    steps : int
        Time steps.
    seed : int
        Of the power map.
    """

    name = "hotspot"
    title = "temperatures of a chip, a 2D thermal stencil"
    kernels = ("stencil",)

    def __init__(self, side: int, steps: int = STEPS, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self.side, self.steps = side, steps
        self.constants = hotspot_constants(side, side)
        self.nbytes = 3 * side * side * 4
        self.inputs = {
            "temperature": random.uniform(70.0, 90.0, (side, side)).astype(np.float32),
            "power": (random.uniform(0.0, 50.0, (side, side)) / side**2).astype(np.float32),
        }

    @classmethod
    def of_size(cls, nbytes: int, seed: int = 0) -> Self:
        """Make one with two temperature maps and a power map of about `nbytes` together."""
        return cls(max(8, isqrt(nbytes // 12)), seed=seed)

    def run(self, lanes: Sequence[Lane]) -> Arrays:
        """Compute the time steps; bands are computed with margins, which neighbours renew after each round."""
        result = self.inputs["temperature"]
        for done in range(0, self.steps, ROUND):
            result = self._round(lanes, result, min(ROUND, self.steps - done))
        return {"temperature": result}

    def _round(self, lanes: Sequence[Lane], before: NDArray[Any], steps: int) -> NDArray[Any]:
        parts = []
        for lane, (first, last) in zip(lanes, bands(self.side, len(lanes)), strict=False):
            top, bottom = max(0, first - steps), min(self.side, last + steps)
            now, power = lane.array(before[top:bottom]), lane.input(self.inputs["power"][top:bottom])
            after = lane.empty(before[top:bottom].shape, np.float32)
            for _ in range(steps):
                lane.submit("stencil", [now, power], [after], **self.constants)
                now, after = after, now
            parts.append((lane, now, slice(first - top, last - top)))
        return np.concatenate([lane.read(buffer)[rows] for lane, buffer, rows in parts])

    def reference(self) -> Arrays:
        """Compute the same with NumPy in double precision."""
        return {"temperature": self._reference}

    def check(self, result: Mapping[str, NDArray[Any]]) -> None:
        """Compare with the reference, to 1e-4 of the hottest cell."""
        require_close("temperature", result["temperature"], self._reference, 1e-4)

    @cached_property
    def _reference(self) -> NDArray[Any]:
        now = self.inputs["temperature"].astype(np.float64)
        power = self.inputs["power"].astype(np.float64)
        c = self.constants
        for _ in range(self.steps):
            wide = np.pad(now, 1, mode="edge")
            change = power + (c["ambient"] - now) / c["rz"]
            change += (wide[:-2, 1:-1] + wide[2:, 1:-1] - 2 * now) / c["ry"]
            change += (wide[1:-1, :-2] + wide[1:-1, 2:] - 2 * now) / c["rx"]
            now += c["step"] / c["capacity"] * change
        return now
