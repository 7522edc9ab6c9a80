"""Drives the engine of requests in virtual time where the front end and its clients compute on a device's cores too.

A request goes through a client (which writes it), the front end (which reads it and hands it to the engine), a batch,
the front end again (which tells the engine of the end first, then writes the answers) and the client, in whose time
it is on time or late.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from polymux.core.serving.decision import Dispatch, RejectRequest
from polymux.core.serving.event import BatchEnded, RequestsArrived, ServingTick
from polymux.core.serving.model import BatchId, ModelName, Request, RequestId
from polymux.policy.serving.interface import ServingPolicy
from polymux.sched.serving.reply_time import ReplyTime
from polymux.sim.serving.host import Host
from polymux.sim.serving.requests import NEVER_NS
from polymux.sim.serving.scenario import Scenario
from polymux.sim.serving.shared_cores import Job, SharedCores
from polymux.sim.serving.virtual_driver import (
    ARRIVAL,
    REFUSED_PAUSE_NS,
    THREAD,
    TICK,
    Progress,
    Record,
    Running,
    VirtualDriver,
)

_CLIENTS, _FRONT_END = 0, 1


class HostedDriver(VirtualDriver):
    """Plays a scenario with a host out; see `VirtualDriver`."""

    def __init__(
        self,
        policy: ServingPolicy,
        scenario: Scenario,
        host: Host,
        record: Record | None,
        progress: Progress | None = None,
    ) -> None:
        super().__init__(policy, scenario, record, progress)
        self._host = host
        self._cores = SharedCores(host, scenario.interference, scenario.devices)
        self._neighbours = self._cores
        self._reply = ReplyTime()
        self._open: dict[RequestId, Request] = {}  # as their clients see them

    # ---- what happens ----

    def _arrive(self, limit: int) -> None:  # noqa: ARG002
        stream = self._stream
        self._now = stream.next_ns
        request = stream.piece[stream.at]
        stream.advance(stream.at + 1)
        self._rapid = 0
        self._send(request)

    def _act(self, kind: int, what: Any) -> None:
        if kind == THREAD:
            self._finish_piece(*what)
        elif kind == TICK:
            self._wakes.discard(self._now)
            self._give(_FRONT_END, 0, 1, self._tick)
        elif kind == ARRIVAL:
            self._rapid = 0
            for request in what:
                self._send(request)
        else:
            super()._act(kind, what)

    def _left(self) -> Mapping[ModelName, Sequence[Request]]:
        left: dict[ModelName, list[Request]] = {}
        for request in self._open.values():
            left.setdefault(request.model, []).append(request)
        return left

    def _count(self, running: Running, end_ns: int, *, failed: bool = False) -> None:
        """A batch that runs at the end: nobody has its answers yet."""
        if end_ns < NEVER_NS:
            self._tally.ran(running.dispatch, running.items, running.start_ns, end_ns, failed=failed)

    def _is_done(self) -> bool:
        return not any(thread.is_busy for thread in self._cores.threads) and super()._is_done()

    def _wake_ns(self, at_ns: int) -> int:
        timer_ns = self._host.timer_ns
        return self._now + max(1, -(-(at_ns - self._now) // timer_ns)) * timer_ns

    def _tick(self, job: Job) -> None:  # noqa: ARG002
        self._check_rapid()
        self._handle(ServingTick())

    # ---- the way of a request ----

    def _send(self, request: Request) -> None:
        self._open[request.id] = request
        work = self._host.work[request.model]

        def received(job: Job) -> None:
            self._enter(request, job.seen_ns)

        def sent(job: Job) -> None:  # noqa: ARG001
            self._give(_FRONT_END, work.receive_ns, work.pieces, received)

        self._give(_CLIENTS, work.send_ns, 1, sent)

    def _enter(self, request: Request, seen_ns: int) -> None:
        """Hand a request to the engine, which is to leave time for the way back."""
        slo_ns = request.deadline_ns - request.arrival_ns
        deadline_ns = seen_ns + slo_ns - min(self._reply.reserve_ns, slo_ns // 4)
        self._handle(
            RequestsArrived([Request(request.id, request.model, seen_ns, deadline_ns, request.items)])
        )

    def _start(self, dispatch: Dispatch) -> None:
        """Have the front end hand a batch over, which begins when it has."""
        items = len(dispatch.requests) * self._items[dispatch.model]
        running = self._running[dispatch.batch] = Running(dispatch, items, self._now, NEVER_NS)
        work = self._host.work[dispatch.model]

        def handed_over(job: Job) -> None:  # noqa: ARG001
            if dispatch.batch in self._running:  # its device may have been lost
                self._compute(running)

        self._give(_FRONT_END, work.start_ns + (items - 1) * work.further_ns, 1, handed_over)

    def _compute(self, running: Running) -> None:
        dispatch = running.dispatch
        took = self._times.take_ns(dispatch.model, dispatch.device, dispatch.units, running.items, self._now)
        self._rapid = 0
        self._move_ends(self._cores.start(dispatch, took, self._now))

    def _end(self, running: Running, *, failed: bool) -> None:
        dispatch = running.dispatch
        del self._running[dispatch.batch]
        self._tally.ran(dispatch, running.items, running.start_ns, self._now, failed=failed)
        self._move_ends(self._cores.end(dispatch, self._now))

        def told(job: Job) -> None:  # noqa: ARG001
            self._tell_end(dispatch, failed)

        self._give(_FRONT_END, 0, 1, told)

    def _tell_end(self, dispatch: Dispatch, failed: bool) -> None:
        settled_ns = self._now
        self._handle(BatchEnded(dispatch.batch, failed))  # the next batch starts before the answers go out
        for request in dispatch.requests:
            client = self._open[request.id]
            if failed:
                del self._open[request.id]
            self._write(client, settled_ns, answered=not failed)

    def _reject(self, decision: RejectRequest) -> None:
        request = self._open.pop(decision.request.id)
        self._tally.refuse(request)
        self._write(request, None, answered=False, retry_at_ns=decision.retry_at_ns or 0)

    def _write(
        self, request: Request, settled_ns: int | None, *, answered: bool, retry_at_ns: int | None = None
    ) -> None:
        """Send an answer or a refusal, and have the client read it."""
        work = self._host.work[request.model]

        def taken(job: Job) -> None:  # noqa: ARG001
            if answered:
                del self._open[request.id]
                self._tally.answered((request,), self._now)
            if request.model in self._loops:
                pause_ns = 0 if retry_at_ns is None else max(retry_at_ns, self._now + REFUSED_PAUSE_NS)
                self._answer_clients(request.model, 1, pause_ns)

        def written(job: Job) -> None:
            if settled_ns is not None:
                self._reply.note(job.began_ns - settled_ns)
            self._give(_CLIENTS, work.take_ns, 1, taken)

        self._give(_FRONT_END, work.reply_ns, 1, written)

    # ---- threads ----

    def _give(self, thread: int, work_ns: int, pieces: int, done: Callable[[Job], None]) -> None:
        was_busy = self._cores.threads[thread].is_busy
        self._cores.threads[thread].give(Job(work_ns / pieces, pieces, done), self._now)
        if not was_busy:
            self._move_ends(self._cores.renew(self._host.device, self._now))

    def _finish_piece(self, number: int, piece: int) -> None:
        thread = self._cores.threads[number]
        if thread.piece != piece or thread.end_ns != self._now:
            return  # it ends at another time by now
        job = thread.finish_piece(self._now)
        self._move_ends(self._cores.renew(self._host.device, self._now))
        if job is not None:
            job.done(job)

    def _move_ends(self, ends: Sequence[tuple[BatchId, int]]) -> None:
        super()._move_ends(ends)
        for number, thread in self._cores.thread_news():
            self._at(thread.end_ns, THREAD, (number, thread.piece))
