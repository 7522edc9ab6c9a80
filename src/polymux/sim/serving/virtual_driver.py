"""Drives the engine of requests in virtual time: carries out what it decides, for as long as a scenario says."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polymux.core.decision import WakeAt
from polymux.core.errors import BadDecision, InvalidRequest
from polymux.core.ids import DeviceId
from polymux.core.serving.decision import (
    Dispatch,
    PrepareInstance,
    RejectRequest,
    RetireInstance,
    ServingDecision,
)
from polymux.core.serving.event import (
    BatchEnded,
    InstanceFailed,
    InstanceReady,
    ModelAdded,
    RequestsArrived,
    ServingDeviceAdded,
    ServingDeviceLost,
    ServingEvent,
    ServingTick,
)
from polymux.core.serving.model import BatchId, ModelName, Request, RequestId
from polymux.policy.serving.interface import ServingPolicy
from polymux.sched.serving.engine import ServingEngine
from polymux.sim.serving.arrivals import SECOND_NS, ClosedLoop
from polymux.sim.serving.batch_time import BatchTimes
from polymux.sim.serving.device_memory import DeviceMemory
from polymux.sim.serving.neighbours import Neighbours
from polymux.sim.serving.outcome import ServingOutcome
from polymux.sim.serving.requests import NEVER_NS, RequestStream
from polymux.sim.serving.scenario import MOST_REQUESTS, Load, Scenario, too_many
from polymux.sim.serving.tally import Tally

Record = Callable[[ServingEvent, int, Sequence[ServingDecision]], None]
"""Is told each step of the engine: the event, the time it was given, and what it decided."""

Progress = Callable[[str, int, int], None]
"""Is told what is done, and how much of how much of it: of the simulation itself, ns."""

SIMULATING = "simulating"
_TOLD_EACH = 100
"""Models."""

EVENT, END, INSTANCE, ARRIVAL, TICK, THREAD = range(6)
"""What happens first of what happens at the same time."""

REFUSED_PAUSE_NS = 1_000_000
_RAPID_NS = 1_000
_MOST_RAPID = 10_000


class VirtualDriver:
    """Plays a scenario out.

    Parameters
    ----------
    policy : ServingPolicy
        Fresh: it is used up.
    scenario : Scenario
    record : callable, optional
        Is told each step of the engine.
    progress : callable, optional
        Is told how far it is, about a hundred times while it simulates.
    """

    def __init__(
        self,
        policy: ServingPolicy,
        scenario: Scenario,
        record: Record | None,
        progress: Progress | None = None,
    ) -> None:
        self._engine = ServingEngine(policy)
        self._view = self._engine.view
        self._scenario = scenario
        self._record = record
        self._tally = Tally(scenario)
        self._times = BatchTimes(scenario)
        self._progress = progress
        self._stream = RequestStream(scenario, self._tally, progress)
        self._agenda: list[tuple[int, int, int, Any]] = []
        self._order = 0
        self._now = 0
        self._running: dict[BatchId, Running] = {}
        self._neighbours: Neighbours | None = (
            Neighbours(scenario.interference, scenario.devices) if scenario.interference.sensitivity else None
        )
        self._memory = DeviceMemory(scenario)
        self._items = {load.model.name: load.items for load in scenario.loads}
        self._wakes: set[int] = set()
        self._rapid = 0
        self._last_tick_ns = -_RAPID_NS
        self._next_id = self._stream.count
        self._loops = {
            load.model.name: (load, load.arrivals, np.random.default_rng([scenario.seed, index, 2]))
            for index, load in enumerate(scenario.loads)
            if isinstance(load.arrivals, ClosedLoop)
        }
        drain = scenario.drain_ns
        if drain is None:
            drain = 2 * max(load.model.slo_ns for load in scenario.loads)
        self._stop_ns = scenario.duration_ns + drain

    def run(self) -> ServingOutcome:
        """Play it out."""
        self._set_up()
        told_ns, duration_ns, progress = 0, self._scenario.duration_ns, self._progress
        agenda, stream, stop_ns = self._agenda, self._stream, self._stop_ns
        while True:
            if progress is not None and self._now >= told_ns:
                progress(SIMULATING, min(self._now, duration_ns), duration_ns)
                told_ns = self._now + duration_ns // 100
            at, kind = (agenda[0][0], agenda[0][1]) if agenda else (NEVER_NS, 0)
            limit = at + 1 if kind > ARRIVAL else at
            if stream.next_ns < limit:
                self._arrive(limit)
                continue
            if at > stop_ns:
                break
            self._now, kind, _, what = heapq.heappop(agenda)
            self._act(kind, what)
            if stream.next_ns == NEVER_NS and not self._running and self._is_done():
                break
        stalled = not agenda and not self._running
        for running in self._running.values():  # what runs at the end ends
            self._count(running, running.end_ns)
        return self._tally.finish(self._left(), stalled=stalled)

    def _set_up(self) -> None:
        for device in self._scenario.devices:
            self._handle(ServingDeviceAdded(device))
        for index, load in enumerate(self._scenario.loads):
            if self._progress is not None and index % _TOLD_EACH == 0:
                self._progress("starting models", index, len(self._scenario.loads))
            self._handle(ModelAdded(load.model))
            for device_id, shares in self._ready(load).items():
                self._offer(load.model.name, device_id, shares)
        for at, event in self._scenario.events:
            self._at(at, EVENT, event)

    def _left(self) -> Mapping[ModelName, Sequence[Request]]:
        """The requests that were not answered."""
        return {name: tuple(state.waiting) for name, state in self._view.models.items()}

    def _wake_ns(self, at_ns: int) -> int:
        """When the policy is woken that asked for a time."""
        return max(at_ns, self._now + 1)

    def _offer(self, model: ModelName, device: DeviceId, shares: Sequence[int]) -> None:
        self._memory.take_first(model, device, shares)
        for units in shares:
            self._handle(InstanceReady(model, device, units))

    def _ready(self, load: Load) -> dict[DeviceId, tuple[int, ...]]:
        if load.ready is not None:
            return dict(load.ready)
        return {device.id: device.shares for device in self._scenario.devices if device.kind in load.surfaces}

    def _is_done(self) -> bool:
        """Whether nothing is left to be answered, when no more requests come by themselves."""
        if any(state.waiting for state in self._view.models.values()):
            return False
        return not any(kind in (EVENT, ARRIVAL) for _, kind, _, _ in self._agenda)

    def _at(self, at_ns: int, kind: int, what: Any) -> None:
        self._order += 1
        heapq.heappush(self._agenda, (at_ns, kind, self._order, what))

    # ---- what happens ----

    def _arrive(self, limit: int) -> None:
        stream = self._stream
        self._now = stream.next_ns
        first, piece = stream.at, stream.piece
        taken, decisions = self._engine.arrive(piece, first, stream.reach(limit))
        stream.advance(taken)
        if self._record is not None:
            self._record(RequestsArrived(piece[first:taken]), self._now, decisions)
        self._rapid = 0
        if decisions:
            self._now = piece[taken - 1].arrival_ns
            self._carry_out(decisions)

    def _act(self, kind: int, what: Any) -> None:
        if kind == TICK:
            self._wakes.discard(self._now)
            self._check_rapid()
            self._handle(ServingTick())
            return
        self._rapid = 0
        if kind == END:
            running = self._running.get(what)
            if (
                running is not None and running.end_ns == self._now
            ):  # not if its device was lost, or it ends later
                self._end(running, failed=False)
        elif kind == ARRIVAL:
            self._handle(RequestsArrived(what))
        else:
            self._handle(what)
            if isinstance(what, ServingDeviceLost):
                self._memory.forget(what.device)
                for running in [r for r in self._running.values() if r.dispatch.device == what.device]:
                    self._end(running, failed=True)
            elif isinstance(what, ServingDeviceAdded):
                self._welcome(what.device.id)

    def _welcome(self, device: DeviceId) -> None:
        """A device came back: the models that are still served can be started there as at the beginning."""
        for load in self._scenario.loads:
            if load.model.name in self._view.models:
                self._offer(load.model.name, device, self._ready(load).get(device, ()))

    def _end(self, running: Running, *, failed: bool) -> None:
        dispatch = running.dispatch
        del self._running[dispatch.batch]
        self._count(running, self._now, failed=failed)
        if self._neighbours is not None:
            self._move_ends(self._neighbours.end(dispatch, self._now))
        self._handle(BatchEnded(dispatch.batch, failed))
        if dispatch.model in self._loops:
            self._answer_clients(dispatch.model, len(dispatch.requests))

    def _count(self, running: Running, end_ns: int, *, failed: bool = False) -> None:
        dispatch = running.dispatch
        self._tally.end(dispatch, running.items, running.start_ns, end_ns, failed=failed)

    def _move_ends(self, ends: Sequence[tuple[BatchId, int]]) -> None:
        """Note when batches that disturb each other end; what the agenda said before no longer counts."""
        for batch, end_ns in ends:
            running = self._running[batch]
            if running.end_ns != end_ns:
                running.end_ns = end_ns
                self._at(end_ns, END, batch)

    def _check_rapid(self) -> None:
        self._rapid = self._rapid + 1 if self._now - self._last_tick_ns < _RAPID_NS else 0
        self._last_tick_ns = self._now
        if self._rapid > _MOST_RAPID:
            raise BadDecision(
                WakeAt(self._now), f"the policy was woken {_MOST_RAPID} times in a row and did nothing", ()
            )

    # ---- closed loop ----

    def _answer_clients(self, model: ModelName, clients: int, not_before_ns: int = 0) -> None:
        load, loop, rng = self._loops[model]
        pauses = (
            rng.exponential(loop.think_ns, clients).astype(np.int64).tolist()
            if loop.think_ns
            else [0] * clients
        )
        by_time: dict[int, list[Request]] = {}
        for pause in pauses:
            at = max(self._now + pause, not_before_ns)
            if at < self._scenario.duration_ns:
                self._next_id += 1
                if self._next_id > MOST_REQUESTS:
                    raise InvalidRequest(
                        f"scenario: more than {MOST_REQUESTS:,} requests by {self._now / SECOND_NS:g} s, with those of"
                        f" closed loops such as model {model}'s, {too_many(self._scenario.duration_ns)}, fewer clients"
                        " or a longer think_s"
                    )
                request = Request(RequestId(self._next_id), model, at, at + load.model.slo_ns, load.items)
                by_time.setdefault(at, []).append(request)
                self._tally.offer(model, 1, at >= self._scenario.warmup_ns)
        for at, requests in by_time.items():
            self._at(at, ARRIVAL, requests)

    # ---- decisions ----

    def _handle(self, event: ServingEvent) -> None:
        decisions = self._engine.handle(event, self._now)
        if self._record is not None:
            self._record(event, self._now, decisions)
        if decisions:
            self._carry_out(decisions)

    def _carry_out(self, decisions: Sequence[ServingDecision]) -> None:
        for decision in decisions:
            if isinstance(decision, Dispatch):
                self._start(decision)
            elif isinstance(decision, WakeAt):
                at = self._wake_ns(decision.at_ns)
                if at not in self._wakes:
                    self._wakes.add(at)
                    self._at(at, TICK, None)
            elif isinstance(decision, RejectRequest):
                self._reject(decision)
            else:
                self._change(decision)

    def _start(self, dispatch: Dispatch) -> None:
        items = len(dispatch.requests) * self._items[dispatch.model]
        now = self._now
        took = self._times.take_ns(dispatch.model, dispatch.device, dispatch.units, items, now)
        running = self._running[dispatch.batch] = Running(dispatch, items, now, 0)
        self._rapid = 0
        if self._neighbours is None:
            running.end_ns = now + took
            self._at(now + took, END, dispatch.batch)
        else:
            self._move_ends(self._neighbours.start(dispatch, took, now))

    def _reject(self, decision: RejectRequest) -> None:
        self._tally.refuse(decision.request)
        if decision.request.model in self._loops:
            back_ns = max(decision.retry_at_ns or 0, self._now + REFUSED_PAUSE_NS)
            self._answer_clients(decision.request.model, 1, back_ns)

    def _change(self, decision: PrepareInstance | RetireInstance) -> None:
        if isinstance(decision, PrepareInstance):
            self._at(self._now + self._scenario.prepare_ns, INSTANCE, self._prepared(decision))
        else:
            self._memory.give_back(decision.model, decision.device, decision.units)

    def _prepared(self, decision: PrepareInstance) -> InstanceReady | InstanceFailed:
        model, device_id, units = decision.model, decision.device, decision.units
        kind = self._view.devices[device_id].spec.kind
        if not self._times.knows(model, kind):
            return InstanceFailed(model, device_id, units, f"it does not run on devices of kind {kind!r}")
        problem = self._memory.take(model, device_id, units)
        if problem is not None:
            return InstanceFailed(model, device_id, units, problem)
        return InstanceReady(model, device_id, units)


@dataclass(slots=True)
class Running:
    """A batch that runs."""

    dispatch: Dispatch
    items: int
    start_ns: int
    end_ns: int
