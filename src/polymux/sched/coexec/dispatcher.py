"""Hands out the chunks of a plan, and corrects the plan while it runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from polymux.core.errors import DeviceUnavailable, InvalidRequest
from polymux.perfmodel.coexec.adapt import Chunk, Plan
from polymux.perfmodel.coexec.unit import IDLE, Load, UnitModel
from polymux.sched.coexec.lane import Lane, Taken, area, make_lane

_WORTH = 2.0
"""What is taken over must save so many times what it costs to begin it."""

_LONG = 1.25
"""A chunk is cut when it is so many times longer than the unit's fair part of what is left."""
_LATE = 1.5
"""A unit that takes so many times longer than predicted is helped by units that are not in the plan."""


@dataclass(frozen=True, slots=True)
class ChunkRun:
    """A chunk that was computed.

    Parameters
    ----------
    unit : str
    chunk : Chunk
    taken_ns, end_ns : int, ns
    stolen_from : str, optional
        Whose it was in the plan; None: the unit's own.
    """

    unit: str
    chunk: Chunk
    taken_ns: int
    end_ns: int
    stolen_from: str | None


class Dispatcher:
    """Runs a plan once.

    Parameters
    ----------
    plan : Plan
    units : sequence of UnitModel
        Those of the plan; others help when one of these fails or is much slower than predicted.
    loads : mapping of str to Load, optional
        What else runs, by the ids of units.
    steal : bool
        Whether units may take over from others; what a failed one leaves is taken over in any case.
    handover_s : float, s
        What taking something over costs, besides.

    Raises
    ------
    InvalidRequest
        If a unit of the plan is missing.

    Notes
    -----
    Not for several threads at once. A unit takes its own chunks from the front; who has none left takes from the back
    of the unit that would end last, as much as lets both end together. How fast a unit is, is predicted, times how
    much longer than predicted its last chunk took.
    """

    def __init__(
        self,
        plan: Plan,
        units: Sequence[UnitModel],
        *,
        loads: Mapping[str, Load] | None = None,
        steal: bool = True,
        handover_s: float = 0.0,
    ) -> None:
        parts = {part.unit: part for part in plan.parts}
        missing = parts.keys() - {unit.id for unit in units}
        if missing:
            raise InvalidRequest(
                f"plan: there is no unit {', '.join(sorted(missing))}; give those it was made for"
            )
        self._problem = plan.problem
        self._steal = steal
        self._handover_s = handover_s
        self._planned = frozenset(parts)
        taken = {unit.device for unit in units if unit.id in parts}
        self._lanes: dict[str, Lane] = {}
        for unit in units:
            if unit.id in parts or unit.device not in taken:
                chunks = parts[unit.id].chunks if unit.id in parts else ()
                self._lanes[unit.id] = make_lane(plan.problem, unit, (loads or {}).get(unit.id, IDLE), chunks)
        self._aside = {unit.id for unit in units} - self._lanes.keys()
        self._orphans: deque[tuple[str, Chunk]] = deque()
        self._left = float(plan.problem.extent * plan.problem.across)
        self._runs: list[ChunkRun] = []
        self._stolen: dict[Chunk, str] = {}

    @property
    def units(self) -> frozenset[str]:
        """Those that may take chunks; where the plan has a unit of a device, its others are set aside."""
        return frozenset(self._lanes)

    @property
    def finished(self) -> bool:
        """Whether everything is computed."""
        return self._left <= 0

    @property
    def handed_out(self) -> bool:
        """Whether units have taken everything, so that nothing is left to give to others unless one fails."""
        return not self._orphans and not any(lane.ahead for lane in self._lanes.values())

    @property
    def runs(self) -> tuple[ChunkRun, ...]:
        """Chunks that were computed, in the order in which they ended."""
        return tuple(self._runs)

    def take(self, unit: str, now_ns: int) -> Chunk | None:
        """Say what a unit computes next.

        Parameters
        ----------
        unit : str
        now_ns : int, ns

        Returns
        -------
        Chunk or None
            None: nothing is worth it now. Ask again when a chunk, whoever's, has ended, or a unit has failed.

        Raises
        ------
        InvalidRequest
            If there is no such unit, or it has failed.

        Notes
        -----
        May be called again before the first chunk has ended, so that a unit need not wait in between.
        """
        lane = self._lane(unit)
        if lane is None:
            return None
        if not lane.ahead:
            if self._orphans:
                self._adopt(lane, now_ns)
            elif self._steal:
                self._take_over(lane, now_ns)
        if not lane.ahead:
            return None
        chunk = self._shortened(lane, now_ns)
        if not lane.taken:
            lane.began_ns = now_ns
        lane.taken.append(Taken(chunk, now_ns, self._stolen.pop(chunk, None)))
        lane.has_begun = True
        return chunk

    def was_stolen(self, unit: str, chunk: Chunk) -> bool:
        """Whether a chunk that a unit has taken was another one's in the plan."""
        lane = self._lanes[unit]
        return any(its.chunk == chunk and its.stolen_from is not None for its in lane.taken)

    def done(self, unit: str, chunk: Chunk, now_ns: int) -> None:
        """Note that a unit has computed a chunk; it does so in the order in which it took them.

        Raises
        ------
        InvalidRequest
            If it is not the one that the unit was at.
        """
        lane = self._lane(unit)
        if lane is None or not lane.taken or lane.taken[0].chunk != chunk:
            at = lane.taken[0].chunk if lane is not None and lane.taken else None
            raise InvalidRequest(
                f"{unit} has done {chunk}, but is at {at}; chunks end in the order of taking"
            )
        its = lane.taken.popleft()
        lane.learn(chunk, now_ns)
        lane.began_ns = now_ns
        self._left -= chunk.count * (chunk.across_count or self._problem.across)
        self._runs.append(ChunkRun(unit, chunk, its.taken_ns, now_ns, its.stolen_from))

    def failed(self, unit: str, now_ns: int) -> None:
        """Note that a unit has failed: what it was at, and what it had before it, is for the others.

        Raises
        ------
        DeviceUnavailable
            If no unit is left.
        InvalidRequest
            If there is no such unit, or it has failed before.
        """
        del now_ns
        lane = self._lane(unit)
        if lane is None:
            return
        lane.has_failed = True
        self._orphans.extend((unit, its.chunk) for its in lane.taken)
        self._orphans.extend((unit, chunk) for chunk in lane.ahead)
        lane.taken.clear()
        lane.ahead.clear()
        if not self.finished and all(its.has_failed for its in self._lanes.values()):
            raise DeviceUnavailable(
                f"{self._problem.op}: every unit has failed ({', '.join(self._lanes)}); nothing is left to compute on"
            )

    def _lane(self, unit: str) -> Lane | None:
        """The lane of a unit; None where another unit of its device is in the plan."""
        lane = self._lanes.get(unit)
        if lane is None and unit not in self._aside:
            raise InvalidRequest(f"there is no unit {unit!r}; there are {', '.join(self._lanes)}")
        if lane is not None and lane.has_failed:
            raise InvalidRequest(f"{unit} has failed; it takes part no more")
        return lane

    def _shortened(self, lane: Lane, now_ns: int) -> Chunk:
        """The next chunk of a unit; a part of it, if it would end long after all together could have done the rest."""
        chunk = lane.ahead.popleft()
        if chunk.across_count or not self._steal:
            return chunk
        late = self._is_late(now_ns)
        lanes = [
            its
            for its in self._lanes.values()
            if not its.has_failed and (late or its is lane or its.taken or its.unit.id in self._planned)
        ]
        if not any(
            its.has_ended or its.has_failed or its.now_factor(now_ns) > _LONG for its in self._lanes.values()
        ):
            return chunk  # nothing says that the plan is wrong
        costs = [its.cost_s(now_ns) for its in lanes]
        ahead = chunk.count + sum(area(other, lane.across) for its in lanes for other in its.ahead)
        ahead += sum(its.free_s(now_ns) / cost for its, cost in zip(lanes, costs, strict=True))
        fair = (ahead / sum(1 / cost for cost in costs) - lane.free_s(now_ns)) / lane.cost_s(now_ns)
        least = max(lane.unit.min_chunk, lane.unit.tile)
        length = max(_snapped(fair, lane) if fair > 0 else 0, least)
        if chunk.count <= _LONG * length or chunk.count - length < least:
            return chunk
        mine, rest = _cut(chunk, length)
        owner = self._stolen.pop(chunk, None)
        if rest is not None:
            lane.ahead.appendleft(rest)
            if owner is not None:
                self._stolen[mine] = self._stolen[rest] = owner
        return mine

    def _adopt(self, lane: Lane, now_ns: int) -> None:
        """Take half of the unit's fair part of what failed units left."""
        left = sum(area(chunk, lane.across) for _, chunk in self._orphans)
        speeds = [1 / its.cost_s(now_ns) for its in self._lanes.values() if not its.has_failed]
        wanted = left / 2 / lane.cost_s(now_ns) / sum(speeds)
        owner, chunk = self._orphans.popleft()
        length = min(chunk.count, max(_snapped(wanted, lane), lane.unit.min_chunk))
        if chunk.count - length < lane.unit.min_chunk:
            length = chunk.count
        mine, rest = _cut(chunk, length)
        if rest is not None:
            self._orphans.appendleft((owner, rest))
        lane.ahead.append(mine)
        self._stolen[mine] = owner

    def _take_over(self, lane: Lane, now_ns: int) -> None:
        """Take from the back of the unit that would end last, so that both end together."""
        victims = [its for its in self._lanes.values() if its.ahead and its is not lane]
        if not victims or (lane.unit.id not in self._planned and not self._is_late(now_ns)):
            return
        late = max(victims, key=lambda its: self._ends_s(its, now_ns))
        mine, its = lane.cost_s(now_ns), late.cost_s(now_ns)
        start = lane.start_s(now_ns) + lane.free_s(now_ns)
        wanted = (self._ends_s(late, now_ns) - start) / (mine + its)
        if wanted * its < _WORTH * (lane.start_s(now_ns) + self._handover_s):
            return
        there = sum(area(chunk, lane.across) for chunk in late.ahead)
        length = _snapped(min(wanted, there), lane)
        if length < min(lane.unit.tile, int(there)):
            return
        for chunk in _halved(self._from_back(late, length), lane):
            lane.ahead.append(chunk)
            self._stolen[chunk] = late.unit.id

    def _is_late(self, now_ns: int) -> bool:
        """Whether a unit of the plan has failed or is much slower than predicted: only then others help."""
        planned = [its for its in self._lanes.values() if its.unit.id in self._planned]
        return any(its.has_failed or its.now_factor(now_ns) > _LATE for its in planned)

    def _ends_s(self, lane: Lane, now_ns: int) -> float:
        """When a unit would have done all that it has, from now, in s."""
        ahead = sum(lane.predicted_s(chunk) for chunk in lane.ahead)
        return lane.free_s(now_ns) + ahead * lane.now_factor(now_ns)

    def _from_back(self, late: Lane, length: int) -> list[Chunk]:
        """Take chunks of about this length together from the back of a unit's."""
        found: list[Chunk] = []
        while late.ahead and length > 0:
            last = late.ahead.pop()
            if last.across_count:  # a piece cut for a memory is taken whole
                found.append(last)
                break
            if last.count <= length:
                found.append(last)
                length -= last.count
                continue
            rest = last.count - length
            kept = rest // late.unit.tile * late.unit.tile or rest
            mine, other = Chunk(last.first + kept, last.count - kept), Chunk(last.first, kept)
            late.ahead.append(other)
            if mine.count:
                found.append(mine)
            break
        found.reverse()
        return _joined(found)


def _snapped(length: float, lane: Lane) -> int:
    tile = lane.unit.tile
    return int(length) // tile * tile or int(length)


def _cut(chunk: Chunk, length: int) -> tuple[Chunk, Chunk | None]:
    """Cut a chunk in two at this length."""
    if length >= chunk.count or chunk.across_count:
        return chunk, None
    return Chunk(chunk.first, length), Chunk(chunk.first + length, chunk.count - length)


def _joined(chunks: Sequence[Chunk]) -> list[Chunk]:
    """Join neighbours of whole width."""
    joined: list[Chunk] = []
    for chunk in chunks:
        before = joined[-1] if joined else None
        if (
            before is not None
            and not before.across_count
            and not chunk.across_count
            and before.first + before.count == chunk.first
        ):
            joined[-1] = Chunk(before.first, before.count + chunk.count)
        else:
            joined.append(chunk)
    return joined


def _halved(chunks: Sequence[Chunk], lane: Lane) -> list[Chunk]:
    """Cut what was taken over in two, so that it can be taken over again."""
    found = []
    for chunk in chunks:
        half = _snapped(chunk.count / 2, lane)
        least = max(lane.unit.min_chunk, lane.unit.tile)
        worth = lane.each_s * half > _WORTH * lane.fixed_s
        if not chunk.across_count and worth and min(half, chunk.count - half) >= least:
            found += [Chunk(chunk.first, half), Chunk(chunk.first + half, chunk.count - half)]
        else:
            found.append(chunk)
    return found
