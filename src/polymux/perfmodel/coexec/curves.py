"""The time of a unit over how much of a problem it gets: sampled from its models, linear between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from polymux.core.errors import InvalidRequest
from polymux.perfmodel.coexec.problem import Problem
from polymux.perfmodel.coexec.traffic import traffic
from polymux.perfmodel.coexec.unit import IDLE, Load, UnitModel

Floats = NDArray[np.float64]
Masks = NDArray[np.bool_]

STREAMED = (1 / 8, 1 / 8, 1 / 4, 1 / 4, 1 / 8, 1 / 16, 1 / 16)
"""Chunks of a part whose copies go on while it is computed: it begins after the first and ends with the last one's."""
_TWICE = 2.0
"""About how often the part of the bus that a unit needs while it computes is taken from a copy that others wait for."""
_PARTS = np.array([1 / 64, 1 / 32, 1 / 16, 1 / 8, 3 / 16, 1 / 4, 3 / 8, 1 / 2, 5 / 8, 3 / 4, 7 / 8, 1.0])


@dataclass(frozen=True, slots=True)
class Curve:
    """A unit's time over the length of its part.

    Parameters
    ----------
    unit : UnitModel
    counts : array of shape (points,)
        Lengths, ascending, from the least worth a launch up to all.
    compute_s : array of shape (points,), s
        Rising.
    in_fixed_s, in_unit_s, out_fixed_s, out_unit_s : float, s
        Copies that it waits for: of every part, and for each unit of its length. Where a unit computes while it copies,
        of its rows those of the first chunk and of its results those of the last one.
    bus_unit_s : float, s
        For how much longer its copies keep others from theirs, for each unit of its length.
    ready_s : float, s
        When the unit is free.
    blocks : int
        Pieces side by side: so often each row is copied in.
    """

    unit: UnitModel
    counts: Floats
    compute_s: Floats
    in_fixed_s: float
    in_unit_s: float
    out_fixed_s: float
    out_unit_s: float
    bus_unit_s: float
    ready_s: float
    blocks: int

    @property
    def bus(self) -> str | None:
        """Bus of its copies; None: it copies nothing."""
        return None if self.unit.link is None else self.unit.link.bus

    def whole_s(self) -> Floats:
        """Time of a part alone on the machine, copies included, over `counts`."""
        begin = np.maximum(self.in_fixed_s + self.in_unit_s * self.counts, self.ready_s)
        whole: Floats = begin + self.compute_s + self.out_fixed_s + self.out_unit_s * self.counts
        return whole

    def compute_at(self, count: float) -> float:
        """Compute time of a part, in s."""
        if count <= 0:
            return 0.0
        if count < self.counts[0]:
            return float(self.compute_s[0])
        return float(np.interp(count, self.counts, self.compute_s))

    def in_s(self, count: float) -> float:
        """Time of the copy in, in s."""
        return self.in_fixed_s + self.in_unit_s * count

    def out_s(self, count: float) -> float:
        """Time of the copy back, in s."""
        return self.out_fixed_s + self.out_unit_s * count

    def tangents(self, counts: Floats) -> tuple[Floats, Floats]:
        """Start and slope of the line through the segments that `counts` are in, in s and s for each unit."""
        if len(self.counts) < 2:
            return np.zeros_like(counts), np.full_like(counts, self.compute_s[0] / self.counts[0])
        place = np.minimum(np.maximum(np.searchsorted(self.counts, counts), 1), len(self.counts) - 1)
        slope = (self.compute_s[place] - self.compute_s[place - 1]) / (
            self.counts[place] - self.counts[place - 1]
        )
        return self.compute_s[place] - slope * self.counts[place], slope


def make_curves(problem: Problem, units: Sequence[UnitModel], loads: Mapping[str, Load]) -> list[Curve]:
    """Sample the units that can take part.

    Parameters
    ----------
    problem : Problem
    units : sequence of UnitModel
    loads : mapping of str to Load
        What else runs, by the ids of units.

    Returns
    -------
    list of Curve
        A unit without room for a piece is left out.

    Raises
    ------
    InvalidRequest
        If there are no units, two have the same id, or none has room.
    """
    if not units:
        raise InvalidRequest(f"{problem.op}: there are no units; give at least one")
    if len({unit.id for unit in units}) < len(units):
        raise InvalidRequest(f"{problem.op}: units {[unit.id for unit in units]}; give each once")
    curves = []
    for unit in units:
        pieces = traffic(problem, unit)
        if pieces is not None:
            curves.append(_curve(problem, unit, loads.get(unit.id, IDLE), pieces.blocks))
    if not curves:
        sizes = ", ".join(f"{unit.id} {unit.memory_nbytes:,} bytes" for unit in units)
        raise InvalidRequest(
            f"{problem.op} of {problem.sizes}: not even a piece of it fits into the memory of a unit ({sizes}); what"
            f" every piece reads has {problem.fixed_nbytes:,.0f} bytes"
        )
    return curves


def _curve(problem: Problem, unit: UnitModel, load: Load, blocks: int) -> Curve:
    extent = problem.extent
    least = min(max(unit.min_chunk, unit.tile), extent)
    counts = _PARTS * extent
    counts = (
        np.concatenate([[least], counts[counts > least * 1.01]])
        if least < extent
        else np.array([float(extent)])
    )
    sizes = np.tile(np.array(problem.sizes), (len(counts), 1))
    sizes[:, problem.axis] = counts
    compute = unit.compute.predict_many(problem.unit_work * counts, sizes) * load.slowdown
    compute = np.maximum.accumulate(compute) * (1 + 1e-9 * np.arange(len(counts)))
    link = unit.link
    if link is None:
        return Curve(unit, counts, compute, 0.0, 0.0, 0.0, 0.0, 0.0, load.ready_s, blocks)
    reads = problem.fixed_nbytes + problem.in_nbytes > 0
    writes = problem.out_nbytes > 0
    in_unit_s = blocks * problem.in_nbytes / link.in_bytes_per_s
    out_unit_s = problem.out_nbytes / link.out_bytes_per_s
    bus_unit_s = in_unit_s
    if link.overlaps:
        copies_s = max(in_unit_s, out_unit_s) if link.duplex else in_unit_s + out_unit_s
        bus_unit_s *= min(1.0, max(STREAMED[0], _TWICE * in_unit_s * counts[-1] / compute[-1]))
        compute = np.maximum(compute, copies_s * counts)
        in_unit_s, out_unit_s = in_unit_s * STREAMED[0], out_unit_s * STREAMED[-1]
    return Curve(
        unit,
        counts,
        compute,
        link.in_latency_s * reads + problem.fixed_nbytes / link.in_bytes_per_s,
        in_unit_s,
        link.out_latency_s * writes,
        out_unit_s,
        bus_unit_s,
        load.ready_s,
        blocks,
    )


@lru_cache(maxsize=64)
def choices(devices: tuple[str, ...]) -> Masks:
    """All ways to use units, at most one of each device.

    Parameters
    ----------
    devices : tuple of str
        Of each unit.

    Returns
    -------
    array of bool, of shape (choices, units)
        Each uses one unit at least.
    """
    count = len(devices)
    masks: Masks = np.asarray((np.arange(1, 2**count)[:, None] >> np.arange(count)) & 1, np.bool_)
    for device in set(devices):
        masks = masks[masks[:, [its == device for its in devices]].sum(axis=1) <= 1]
    masks.setflags(write=False)
    return masks
