"""Plays a co-execution out: the planner and the dispatcher that run live, in virtual time."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil

from polymux.core.errors import DeviceUnavailable
from polymux.perfmodel.coexec.adapt import Chunk, Plan
from polymux.perfmodel.coexec.planner import Planner
from polymux.perfmodel.coexec.unit import UnitModel
from polymux.sched.coexec.dispatcher import Dispatcher
from polymux.sim.coexec.bus import Channel, Copy
from polymux.sim.coexec.ideal import ideal_s
from polymux.sim.coexec.outcome import CoexecOutcome, Span
from polymux.sim.coexec.scenario import CoexecScenario, Failure, SpeedChange

_Call = Callable[[int], None]


def simulate(scenario: CoexecScenario, plan: Plan | None = None) -> CoexecOutcome:
    """Simulate a co-execution.

    Parameters
    ----------
    scenario : CoexecScenario
    plan : Plan, optional
        Instead of the one that the planner makes.

    Raises
    ------
    InvalidRequest
        If nothing can be planned.
    DeviceUnavailable
        If all units fail before it is done.
    """
    if plan is None:
        plan = Planner(scenario.units).plan(scenario.problems, scenario.objective)
    return _Simulation(scenario, plan).run()


@dataclass(slots=True)
class _Machine:
    """A unit: what has arrived for it, and what it computes."""

    unit: UnitModel
    rank: int
    waiting: deque[Chunk] = field(default_factory=deque)
    under_way: int = 0
    """Chunks that are being copied in."""
    returning: int = 0
    """Chunks that are being copied back."""
    at: Chunk | None = None
    left_ns: float = 0.0
    """Of the chunk that it computes, at the predicted speed."""
    looked_ns: int = 0
    start_ns: int = 0
    slowdown: float = 1.0
    token: int = 0
    block: tuple[int, int] | None = None
    """Second-axis piece of what everybody reads that is in its memory."""
    failed: bool = False
    stolen: set[Chunk] = field(default_factory=set)


class _Simulation:
    def __init__(self, scenario: CoexecScenario, plan: Plan) -> None:
        self._scenario = scenario
        self._plan = plan
        self._problem = plan.problem
        self._calls: list[tuple[int, int, _Call]] = []
        self._number = 0
        self._spans: list[Span] = []
        self._busy_ns: dict[str, float] = {}
        self._end_ns = 0
        others = [unit.id for unit in scenario.units if unit.id not in plan.units]
        ranks = {unit: rank for rank, unit in enumerate([*plan.units, *others])}
        planned = [unit.device for unit in scenario.units if unit.id in plan.units]
        self._machines = {
            unit.id: _Machine(unit, ranks[unit.id])
            for unit in scenario.units
            if unit.id in plan.units or (unit.device not in planned and not scenario.objective.energy)
        }
        self._dispatcher = Dispatcher(
            plan, [machine.unit for machine in self._machines.values()], steal=scenario.steal
        )
        self._channels: dict[tuple[str, bool], Channel] = {}

    def run(self) -> CoexecOutcome:
        """Play it out to the end."""
        for change in self._scenario.changes:
            self._at(round(change.at_s * 1e9), self._changer(change))
        for failure in self._scenario.failures:
            if failure.unit in self._machines:
                self._at(round(failure.at_s * 1e9), self._failer(failure))
        self._at(0, self._feed_all)
        while self._calls and not self._complete():
            now, _, call = heapq.heappop(self._calls)
            call(now)
        if not self._complete():
            raise DeviceUnavailable(
                f"{self._problem.op}: simulated to its end without being done; units have failed"
            )
        makespan_s = self._end_ns / 1e9
        lost = tuple(its.unit.id for its in self._machines.values() if its.failed)
        ideal = ideal_s(self._problem, self._scenario.units, self._scenario.changes, self._scenario.failures)
        spans = tuple(sorted(self._spans, key=lambda span: (span.start_ns, span.unit)))
        return CoexecOutcome(self._plan, spans, makespan_s, self._energy_j(makespan_s), ideal, lost)

    # Time

    def _at(self, when: int, call: _Call) -> None:
        self._number += 1
        heapq.heappush(self._calls, (when, self._number, call))

    def _complete(self) -> bool:
        return self._dispatcher.finished

    # Chunks

    def _feed_all(self, now: int) -> None:
        for machine in sorted(self._machines.values(), key=lambda its: its.rank):
            self._feed(machine, now)

    def _feed(self, machine: _Machine, now: int) -> None:
        """Let a unit take chunks: one at a time, and one ahead where it computes while another one is copied."""
        link = machine.unit.link
        overlaps = link is not None and link.overlaps
        while not machine.failed:
            there = machine.under_way + len(machine.waiting) + (machine.at is not None)
            if there >= 2 if overlaps else there + machine.returning >= 1:
                return
            chunk = self._dispatcher.take(machine.unit.id, now)
            if chunk is None:
                return
            if self._dispatcher.was_stolen(machine.unit.id, chunk):
                machine.stolen.add(chunk)
            self._bring(machine, chunk, now)

    def _bring(self, machine: _Machine, chunk: Chunk, now: int) -> None:
        link = machine.unit.link
        if link is None:
            machine.waiting.append(chunk)
            self._begin(machine, now)
            return
        machine.under_way += 1
        nbytes = self._problem.in_nbytes * chunk.count
        block = (chunk.across_first, chunk.across_count or self._problem.across)
        if block != machine.block:
            machine.block = block
            nbytes += self._problem.fixed_nbytes * block[1] / self._problem.across

        def arrived(then: int) -> None:
            if not machine.failed:
                machine.under_way -= 1
                machine.waiting.append(chunk)
                self._begin(machine, then)

        self._copy(machine, chunk, "in", link.in_s(nbytes), arrived, now)

    def _copy(
        self, machine: _Machine, chunk: Chunk, kind: str, seconds: float, ended: _Call, now: int
    ) -> None:
        link = machine.unit.link
        assert link is not None
        key = (link.bus, kind == "out" and link.duplex)
        channel = self._channels.setdefault(key, Channel(self._at))

        def span(begin: int, end: int) -> None:
            if not machine.failed:
                self._note(machine, kind, chunk, begin, end)

        left_ns = max(1, round(seconds * 1e9))
        channel.add(Copy(left_ns, lambda: self._dry_ns(machine), machine.rank, span, ended), now)

    def _dry_ns(self, machine: _Machine) -> int:
        """When a unit will have computed what it has."""
        if machine.at is None:
            return 0
        return machine.looked_ns + ceil(machine.left_ns * self._slowness(machine))

    def _begin(self, machine: _Machine, now: int) -> None:
        if machine.at is not None or not machine.waiting:
            return
        chunk = machine.at = machine.waiting.popleft()
        problem = self._problem
        seconds = machine.unit.compute.predict(problem.features(chunk.count))
        if chunk.across_count:
            seconds *= chunk.across_count / problem.across
        machine.left_ns = seconds * 1e9
        machine.start_ns = machine.looked_ns = now
        self._await_end(machine, now)
        self._feed(machine, now)

    def _slowness(self, machine: _Machine) -> float:
        return machine.slowdown * self._scenario.truth.get(machine.unit.id, 1.0)

    def _await_end(self, machine: _Machine, now: int) -> None:
        machine.token += 1
        token = machine.token

        def end(then: int) -> None:
            if machine.token == token and not machine.failed:
                self._computed(machine, then)

        self._at(now + ceil(machine.left_ns * self._slowness(machine)), end)

    def _computed(self, machine: _Machine, now: int) -> None:
        chunk, machine.at = machine.at, None
        assert chunk is not None
        self._note(machine, "compute", chunk, machine.start_ns, now)
        link = machine.unit.link
        if link is None:
            self._done(machine, chunk, now)
        else:
            self._begin(machine, now)
            nbytes = self._problem.out_nbytes * chunk.count
            if chunk.across_count:
                nbytes *= chunk.across_count / self._problem.across
            machine.returning += 1
            self._copy(
                machine, chunk, "out", link.out_s(nbytes), lambda then: self._done(machine, chunk, then), now
            )
        self._feed(machine, now)

    def _done(self, machine: _Machine, chunk: Chunk, now: int) -> None:
        if machine.failed:
            return
        machine.returning = max(0, machine.returning - 1)
        self._dispatcher.done(machine.unit.id, chunk, now)
        self._end_ns = now
        self._feed_all(now)

    def _note(self, machine: _Machine, kind: str, chunk: Chunk, start: int, end: int) -> None:
        stolen = chunk in machine.stolen
        if kind == "compute":
            self._busy_ns[machine.unit.id] = self._busy_ns.get(machine.unit.id, 0.0) + end - start
            self._spans.append(Span(machine.unit.id, "compute", chunk, start, end, stolen))
        elif end > start:
            self._spans.append(
                Span(machine.unit.id, "in" if kind == "in" else "out", chunk, start, end, stolen)
            )

    # What goes wrong

    def _changer(self, change: SpeedChange) -> _Call:
        def apply(now: int) -> None:
            for machine in self._machines.values():
                if machine.unit.device == change.device:
                    if machine.at is not None:
                        done = (now - machine.looked_ns) / self._slowness(machine)
                        machine.left_ns = max(0.0, machine.left_ns - done)
                        machine.looked_ns = now
                    machine.slowdown = change.slowdown
                    if machine.at is not None:
                        self._await_end(machine, now)
            self._feed_all(now)

        return apply

    def _failer(self, failure: Failure) -> _Call:
        def apply(now: int) -> None:
            machine = self._machines[failure.unit]
            machine.failed = True
            self._dispatcher.failed(failure.unit, now)
            self._feed_all(now)

        return apply

    # What came of it

    def _energy_j(self, makespan_s: float) -> float | None:
        total, seen = 0.0, set()
        for unit in self._scenario.units:
            if unit.power is None:
                return None
            total += (unit.power.busy_w - unit.power.idle_w) * self._busy_ns.get(unit.id, 0.0) / 1e9
            if unit.device not in seen:
                seen.add(unit.device)
                total += unit.power.idle_w * makespan_s
        return total
