"""What a unit can really run: parts in multiples of tiles, cut into chunks that fit and that others can take over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polymux.core.errors import InvalidRequest
from polymux.perfmodel.coexec.curves import STREAMED, Curve, make_curves
from polymux.perfmodel.coexec.problem import Problem
from polymux.perfmodel.coexec.split import Split, energy_j, schedule
from polymux.perfmodel.coexec.traffic import traffic
from polymux.perfmodel.coexec.unit import IDLE, Load, UnitModel

_MOST_HALVES = 6
"""Chunks of a part: 1/2, 1/4, ... and the last one twice. More would not help: 1/64 of a part is 0.8 % of the time."""
_SMALLER = 1e-6
LEAD_S = 5e-3
"""A unit that runs gets its next chunk so long before it is predicted to end the one that it is at: whoever hands it
out may have to wait some ms for a core."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece that a unit runs at one go.

    Parameters
    ----------
    first, count : int
        Along the axis that is split.
    across_first, across_count : int
        Along the second axis; a count of 0: all of it, which is always so where nothing has to be cut for a memory.
    """

    first: int
    count: int
    across_first: int = 0
    across_count: int = 0


@dataclass(frozen=True, slots=True)
class PlannedPart:
    """What one unit is to run.

    Parameters
    ----------
    unit : str
    first, count : int
        Along the axis that is split.
    chunks : tuple of Chunk
        In order. Each is about half of what is left, so that a unit that becomes half as fast in the middle of one
        still ends it by when the whole part was to end, and others can take over the rest.
    compute_s, end_s : float, s
        Predicted.
    """

    unit: str
    first: int
    count: int
    chunks: tuple[Chunk, ...]
    compute_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Plan:
    """A split as it can be run.

    Parameters
    ----------
    problem : Problem
    split : Split
        That it was made from.
    parts : tuple of PlannedPart
        In the order of their copies in.
    predicted_s : float, s
    energy_j : float, optional, J
        None: a unit has no model of its power.
    """

    problem: Problem
    split: Split
    parts: tuple[PlannedPart, ...]
    predicted_s: float
    energy_j: float | None

    @property
    def units(self) -> tuple[str, ...]:
        """Who takes part."""
        return tuple(part.unit for part in self.parts)


@dataclass(frozen=True, slots=True)
class _Cutting:
    """What cutting a part may cost, relative, and what each chunk costs, in s."""

    overhead: float
    lead_s: float
    handover_s: float


def adapt(
    split: Split,
    units: Sequence[UnitModel],
    *,
    loads: Mapping[str, Load] | None = None,
    overhead: float = 0.01,
    together_s: float = 0.0,
    lead_s: float = 0.0,
    handover_s: float = 0.0,
) -> Plan:
    """Make a split into what can be run.

    Parameters
    ----------
    split : Split
    units : sequence of UnitModel
        The same as for `optimize`.
    loads : mapping of str to Load, optional
        The same as for `optimize`.
    overhead : float
        What cutting a part into chunks may add to its time, relative.
    together_s : float, s
        What more than one unit costs besides, to bring them together. Where one unit alone is not slower, it gets all.
    lead_s : float, s
        Units get chunks so long before they begin them. A chunk is twice as long at least: who gets it as soon as he
        has begun the one before leaves others no time to take it over.
    handover_s : float, s
        What each chunk costs after the first one, besides.

    Returns
    -------
    Plan

    Raises
    ------
    InvalidRequest
        If a unit of the split is missing, or the overhead is not positive.

    Notes
    -----
    Parts become multiples of the tile of their unit, but for one that takes what remains. For splits by time; one whose
    objective counts energy is not given to one unit because that is faster.
    """
    if not overhead > 0:
        raise InvalidRequest(f"an overhead of {overhead} for chunks; give more than 0")
    curves = {curve.unit.id: curve for curve in make_curves(split.problem, units, loads or {})}
    missing = [part.unit for part in split.parts if part.unit not in curves]
    if missing:
        raise InvalidRequest(f"split: there is no unit {', '.join(missing)}; give the units it was made with")
    used = [curves[part.unit] for part in split.parts]
    counts = _snapped(split, used)
    if together_s and len(used) > 1:
        used, counts = _alone_if_faster(split, list(curves.values()), used, counts, together_s)
    order = range(len(used))
    names = [curve.unit.id for curve in used]
    back = [names.index(unit) for unit in split.back if unit in names] if len(used) > 1 else [0]
    times = schedule(used, counts, list(order), back)
    cutting = _Cutting(overhead, lead_s, handover_s)
    parts, first = [], 0
    for curve, count, (_, whole_s) in zip(used, counts, times, strict=True):
        if count:
            chunks = _chunks(split.problem, curve, first, count, cutting, alone=len(used) == 1)
            slowdown = (loads or {}).get(curve.unit.id, IDLE).slowdown
            compute_s = _pieces_s(split.problem, curve, count, chunks, slowdown, handover_s)
            end_s = whole_s + compute_s - curve.compute_at(count)
            parts.append(PlannedPart(curve.unit.id, first, count, chunks, compute_s, end_s))
            first += count
    makespan = max(part.end_s for part in parts) + (together_s if len(used) > 1 else 0.0)
    idle = [curve for curve in curves.values() if curve.unit.id not in names]
    energy = energy_j([*used, *idle], [*counts, *[0] * len(idle)], makespan)
    return Plan(split.problem, split, tuple(parts), makespan, energy)


def _snapped(split: Split, used: Sequence[Curve]) -> list[int]:
    """Make lengths multiples of tiles; the rest goes to the unit that loses least by it."""
    counts = [part.count for part in split.parts]
    if len(used) == 1:
        return counts
    absorber = min(range(len(used)), key=lambda unit: _loss_s(used, unit))
    tiles = [curve.unit.tile for curve in used]
    if max(tiles) == 1:
        return counts
    for unit, tile in enumerate(tiles):
        if unit != absorber:
            least = -(-int(used[unit].counts[0]) // tile) * tile
            counts[unit] = max(round(counts[unit] / tile) * tile, least)
    counts[absorber] = 0
    while sum(counts) > split.problem.extent:
        largest = max(range(len(counts)), key=lambda i: counts[i])
        counts[largest] -= min(tiles[largest], sum(counts) - split.problem.extent)
    counts[absorber] = split.problem.extent - sum(counts)
    return _tiles_moved(split, used, counts, absorber)


def _loss_s(used: Sequence[Curve], absorber: int) -> float:
    """What a unit may lose by a length that is no multiple of its tile and that others' tiles make inexact, in s."""
    curve = used[absorber]
    own = curve.unit.tile if curve.unit.tile > 1 else 0
    others = sum(its.unit.tile / 2 for its in used if its is not curve)
    return float(curve.compute_s[-1] / curve.counts[-1]) * (own + others)


def _tiles_moved(split: Split, used: Sequence[Curve], counts: list[int], absorber: int) -> list[int]:
    """Move tiles between the absorber and the others as long as the makespan falls."""
    names = [curve.unit.id for curve in used]
    back = [names.index(unit) for unit in split.back]

    def makespan(counts: Sequence[int]) -> float:
        return max(end for _, end in schedule(used, counts, range(len(used)), back))

    best = makespan(counts)
    for _ in range(2 * len(used)):
        trials = []
        for unit, curve in enumerate(used):
            for step in (curve.unit.tile, -curve.unit.tile):
                trial = list(counts)
                trial[unit] += step
                trial[absorber] -= step
                if unit != absorber and min(trial) >= 0 and _long_enough(used, trial):
                    trials.append((makespan(trial), trial))
        better = min(trials, default=(best, counts))
        if better[0] >= best * (1 - _SMALLER):
            break
        best, counts = better
    return counts


def _long_enough(used: Sequence[Curve], counts: Sequence[int]) -> bool:
    return all(not count or count >= curve.counts[0] for curve, count in zip(used, counts, strict=True))


def _alone_if_faster(
    split: Split, curves: Sequence[Curve], used: list[Curve], counts: list[int], together_s: float
) -> tuple[list[Curve], list[int]]:
    """Give everything to the fastest unit where that is not slower than bringing several together."""
    fastest = min(curves, key=lambda curve: float(curve.whole_s()[-1]))
    if float(fastest.whole_s()[-1]) <= split.makespan_s + together_s:
        return [fastest], [split.problem.extent]
    return used, counts


def _chunks(
    problem: Problem, curve: Curve, first: int, count: int, cutting: _Cutting, *, alone: bool
) -> tuple[Chunk, ...]:
    pieces = traffic(problem, curve.unit)
    longest = count if pieces is None else pieces.rows
    if curve.unit.link is not None and curve.unit.link.overlaps:
        lengths = _streamed(curve, count)
    else:
        lengths = [count] if alone else _halves(problem, curve, count, cutting)
    lengths = [piece for length in lengths for piece in _cut(length, longest)]
    blocks = 1 if pieces is None else pieces.blocks
    if pieces is None or blocks == 1:
        return tuple(Chunk(begin, length) for begin, length in _placed(first, lengths))
    widths = _cut(problem.across, pieces.across)
    return tuple(
        Chunk(begin, length, at, width)
        for at, width in _placed(0, widths)
        for begin, length in _placed(first, lengths)
    )


def _pieces_s(
    problem: Problem, curve: Curve, count: int, chunks: Sequence[Chunk], slowdown: float, handover_s: float
) -> float:
    """Compute time of a part as it is cut, in s; that of the whole where chunks overlap with copies or are blocks."""
    link = curve.unit.link
    if chunks[0].across_count or (link is not None and link.overlaps):
        return curve.compute_at(count)
    took = _seconds(problem, curve.unit, [chunk.count for chunk in chunks])
    return float(took.sum()) * slowdown + handover_s * (len(chunks) - 1)


def _seconds(problem: Problem, unit: UnitModel, lengths: Sequence[int]) -> NDArray[np.float64]:
    sizes = np.tile(np.array(problem.sizes), (len(lengths), 1))
    sizes[:, problem.axis] = lengths
    return unit.compute.predict_many(problem.unit_work * np.array(lengths, np.float64), sizes)


def _halves(problem: Problem, curve: Curve, count: int, cutting: _Cutting) -> list[int]:
    """Cut into a half, a quarter, and so on, as often as that adds no more to the time than it may."""
    tile, least = curve.unit.tile, int(curve.counts[0])
    plans = [[count]]
    for halves in range(1, _MOST_HALVES + 1):
        lengths, rest = [], count
        for _ in range(halves):
            piece = max(least, -(-rest // (2 * tile)) * tile)
            if rest - piece < least:
                break
            lengths.append(piece)
            rest -= piece
        if len(lengths) < halves:
            break
        plans.append([*lengths, rest])
    lengths = sorted({length for plan in plans for length in plan})
    took = dict(zip(lengths, map(float, _seconds(problem, curve.unit, lengths)), strict=True))
    link = curve.unit.link
    between_s = cutting.handover_s + (0.0 if link is None else link.in_latency_s + link.out_latency_s)
    limit = took[count] * (1 + cutting.overhead)
    good = [
        plan
        for plan in plans
        if sum(took[its] for its in plan) + between_s * (len(plan) - 1) <= limit
        and (len(plan) == 1 or min(took[its] for its in plan) >= 2 * cutting.lead_s)
    ]
    return good[-1] if good else plans[0]


def _streamed(curve: Curve, count: int) -> list[int]:
    """Cut so that computing begins soon, and little is left to be copied back when it ends."""
    tile, least = curve.unit.tile, int(curve.counts[0])
    lengths, rest = [], count
    for part in STREAMED[:-1]:
        piece = max(least, round(count * part / tile) * tile)
        if rest - piece < least:
            break
        lengths.append(piece)
        rest -= piece
    return [*lengths, rest]


def _cut(length: int, longest: int) -> list[int]:
    """Cut evenly into as few as there must be."""
    number = -(-length // longest)
    return [length // number + (place < length % number) for place in range(number)]


def _placed(first: int, lengths: Sequence[int]) -> list[tuple[int, int]]:
    placed = []
    for length in lengths:
        placed.append((first, length))
        first += length
    return placed
