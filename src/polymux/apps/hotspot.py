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
from polymux.core.errors import InvalidRequest
from polymux.kernel.builtin.stencil import hotspot_constants

STEPS = 64
ROUND = 8
"""Time steps of one task; between two tasks the bands exchange so many rows at their edges."""
STABILITY = 0.2
"""Time step in capacity times resistance between neighbours; the explicit scheme is stable up to 0.25."""
_PARTS = 6  # of the chip along an edge, each with a load of its own
_HEATING = 5.0  # K, of a part at full load in `STEPS` steps


class Hotspot(Application):
    """Explicit time steps of the heat equation on a square chip, in float32, by bands of rows.

    Parameters
    ----------
    side : int
        Cells along an edge.
    steps : int
        Time steps.
    seed : int
        Of the temperatures at first and of the power map.
    """

    name = "hotspot"
    title = "temperatures of a chip, a 2D thermal stencil"
    kernels = ("hotspot_steps",)

    def __init__(self, side: int, steps: int = STEPS, seed: int = 0) -> None:
        if side < 1 or steps < 0:
            raise InvalidRequest(
                f"side is {side} and steps is {steps}; give a side of 1 or more and 0 steps or more"
            )
        random = np.random.default_rng(seed)
        self.side, self.steps = side, steps
        self.constants = hotspot_constants(side, side)
        # With Rodinia's time step the explicit scheme diverges on grids of more than 1,400 cells a side.
        self.constants["step"] = STABILITY * self.constants["capacity"] * self.constants["rx"]
        self.nbytes = 4 * side * side * 4
        temperature = random.random((side, side), np.float32)
        temperature += self.constants["ambient"] - 0.5
        power = np.zeros((side, side), np.float32)
        loads = random.random((_PARTS, _PARTS))
        per_kelvin = self.constants["capacity"] / (self.constants["step"] * STEPS)  # W
        for (row, column), load in np.ndenumerate(loads):
            rows, columns = (
                slice(side * (8 * i + 1) // (8 * _PARTS), side * (i + 1) // _PARTS) for i in (row, column)
            )
            power[rows, columns] = load * _HEATING * per_kelvin
        self.inputs = {"temperature": temperature, "power": power}

    @classmethod
    def of_size(cls, nbytes: int, seed: int = 0) -> Self:
        """Make one whose temperatures (three times) and power map take about `nbytes` together."""
        return cls(max(ROUND, isqrt(nbytes // 16)), seed=seed)

    def run(self, lanes: Sequence[Lane]) -> Arrays:
        """Compute the time steps; after each round the lanes wait for each other, for the rows at the bands' edges."""
        cuts = bands(self.side, min(len(lanes), self.side // ROUND or 1))
        parts = [_Band(lane, self.inputs, *cut) for lane, cut in zip(lanes, cuts, strict=False)]
        for done in range(0, self.steps, ROUND):
            steps = min(ROUND, self.steps - done)
            edges = [part.edges for part in parts]
            for index, part in enumerate(parts):
                above = edges[index - 1][1] if index > 0 else None
                below = edges[index + 1][0] if index + 1 < len(parts) else None
                part.advance(above, below, steps, self.constants)
            if len(parts) > 1:
                for part in parts:
                    part.lane.wait()
        results = [part.lane.read(part.now) for part in parts]
        return {"temperature": results[0] if len(results) == 1 else np.concatenate(results)}

    def reference(self) -> Arrays:
        """Compute the same with NumPy in double precision."""
        return {"temperature": self._reference}

    def check(self, result: Mapping[str, NDArray[Any]]) -> None:
        """Compare with the reference, to 2e-6 of the hottest cell: some roundings of float32."""
        require_close("temperature", result["temperature"], self._reference, 2e-6)

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


class _Band:
    """Rows of the chip that one lane computes."""

    def __init__(self, lane: Lane, inputs: Arrays, first: int, last: int) -> None:
        temperature, power = inputs["temperature"], inputs["power"]
        self.lane = lane
        self.now = lane.input(temperature[first:last])
        self.power = lane.input(power[first:last])
        above, below = slice(max(0, first - ROUND), first), slice(last, last + ROUND)
        self.power_above, self.power_below = lane.input(power[above]), lane.input(power[below])
        self.edges = (
            lane.input(temperature[first : first + ROUND]),
            lane.input(temperature[max(0, last - ROUND) : last]),
        )
        self._nothing = lane.empty((0, temperature.shape[1]), np.float32)
        shape = (last - first, temperature.shape[1])
        self._targets = [lane.empty(shape, np.float32) for _ in range(2)]
        self._edges = [self._new_edges(first > 0, last < len(temperature)) for _ in range(2)]

    def _new_edges(self, top: bool, bottom: bool) -> tuple[Any, Any]:
        columns = self._targets[0].shape[1]
        empty = self.lane.empty
        return (
            empty((ROUND, columns), np.float32) if top else self._nothing,
            empty((ROUND, columns), np.float32) if bottom else empty((0, columns), np.float32),
        )

    def advance(self, above: Any, below: Any, steps: int, constants: Mapping[str, float]) -> None:
        """Submit some time steps; `above` and `below` are the neighbours' rows, None at an edge of the chip."""
        target, edges = self._targets[0], self._edges[0]
        margins = [self._nothing if rows is None else rows for rows in (above, below)]
        inputs = [self.now, self.power, *margins, self.power_above, self.power_below]
        self.lane.submit("hotspot_steps", inputs, [target, *edges], steps=steps, **constants)
        self.now, self.edges = target, edges
        self._targets.reverse()
        self._edges.reverse()
