"""Drives the engine of requests in real time: arrivals and ends of batches in, batches and refusals out."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from polymux.core.decision import WakeAt
from polymux.core.errors import BadDecision, Cancelled, DeviceFailed, NoDevice, PolymuxError, ServerGone
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
    RequestCancelled,
    RequestsArrived,
    ServingDeviceAdded,
    ServingDeviceLost,
    ServingEvent,
    ServingTick,
)
from polymux.core.serving.model import ModelName, Request, RequestId, ServedModel
from polymux.core.serving.view import ServingView
from polymux.core.status import TaskStatus
from polymux.policy.serving import registry
from polymux.sched.serving.engine import ServingEngine
from polymux.sched.serving.reply_time import ReplyTime
from polymux.serving.errors import RequestError
from polymux.serving.scheduling.lanes import Instances
from polymux.serving.scheduling.machine import Machine
from polymux.serving.scheduling.merging import Tensors
from polymux.serving.scheduling.pending import Batch, Pending, close_all, refusal, retry_after
from polymux.serving.scheduling.statistics import Statistics
from polymux.serving.scheduling.wake import WakeUps

__all__ = ["Scheduler"]

_log = logging.getLogger(__name__)

_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 60.0
"""Before a share is tried again on which a model could not be loaded; the pause doubles each time."""
_ASK_AGAIN_NS = 100_000_000
"""A policy that failed is asked again after this time, should nothing happen before."""
_GIVE_UP_NS = 5_000_000_000
"""When a policy has done nothing but fail for so long, what waits is refused."""


class Scheduler:
    """Requests of all models of one front end.

    Parameters
    ----------
    machine : Machine
        Where batches can run.
    policy : str
        ``NAME`` or ``NAME=OPTION``.
    statistics : Statistics
        Is told what happens.
    clock : callable
        Monotonic time in ns; one that goes back is taken for one that stands still.

    Raises
    ------
    InvalidRequest
        If there is no such policy.

    Notes
    -----
    Belongs to one event loop. The engine is called synchronously, so that it sees one event at a time; everything that
    takes time (a batch, an instance that is being loaded) is a task whose end is the next event.
    """

    def __init__(
        self,
        machine: Machine,
        policy: str,
        statistics: Statistics,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._engine = ServingEngine(registry.load(policy))
        self._policy = policy
        self._clock = clock
        self.statistics = statistics
        self._instances: dict[ModelName, Instances] = {}
        self._waiting: dict[RequestId, Pending] = {}
        self._arrivals: list[Request] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake_ups = WakeUps(clock, lambda: self._handle(ServingTick()))
        self._preparing: set[tuple[ModelName, DeviceId, int]] = set()
        self._pauses_s: dict[tuple[ModelName, DeviceId, int], float] = {}
        self._reply = ReplyTime()
        self._requests_made = 0
        statistics.view = lambda: self._engine.view
        self._failing_since: int | None = None
        self._closed: PolymuxError | None = None
        for device in machine.devices:
            self._handle(ServingDeviceAdded(device))

    @property
    def view(self) -> ServingView:
        """What the engine knows; to be read only."""
        return self._engine.view

    async def add(
        self, model: ServedModel, instances: Instances, shares: Mapping[DeviceId, Sequence[int]]
    ) -> None:
        """Serve a model from now on.

        Parameters
        ----------
        model : ServedModel
        instances : Instances
            Runs its batches; becomes this object's.
        shares : mapping of DeviceId to sequence of int
            On which it is made able to run before this returns.

        Raises
        ------
        PolymuxError
            If it can be loaded on none of them.
        """
        problems: list[PolymuxError] = []
        ready: list[tuple[DeviceId, int]] = []
        for device, units in ((device, units) for device, sizes in shares.items() for units in sizes):
            try:
                await instances.prepare(device, units)
                ready.append((device, units))
            except PolymuxError as error:
                problems.append(error)
        if problems and not ready:
            instances.close()  # some blocks of a share may have one
            raise problems[0]
        self._instances[model.name] = instances
        self._handle(ModelAdded(model))
        for device, units in ready:
            self._handle(InstanceReady(model.name, device, units))
        for problem in problems:
            _log.warning("model %s: %s", model.name, problem)

    async def answer(
        self,
        model: ModelName,
        inputs: Tensors,
        items: int,
        arrival_ns: int,
        deadline_ns: int,
        *,
        expires: bool,
    ) -> Tensors:
        """Have a request answered.

        Parameters
        ----------
        model : ModelName
        inputs : Tensors
            They stay the caller's.
        items : int
            Of the batch dimension.
        arrival_ns, deadline_ns : int
        expires : bool
            Whether the answer has no use after the deadline: a request that still waits then is given up.

        Returns
        -------
        Tensors
            The outputs, now the caller's to close.

        Raises
        ------
        RequestError
            503 with the time at which to come back, when the policy refuses it or it expires.
        PolymuxError
            When it, or its batch, failed.
        """
        if self._closed is not None:
            raise self._closed
        self._requests_made += 1
        due_ns = deadline_ns - min(self._reply.reserve_ns, max(0, deadline_ns - arrival_ns) // 4)
        request = Request(RequestId(self._requests_made), model, arrival_ns, due_ns, items)
        loop = asyncio.get_running_loop()
        pending = Pending(request, inputs, loop.create_future(), deadline_ns)
        self._waiting[request.id] = pending
        if expires:
            delay_s = max(0.0, (deadline_ns - self._clock()) / 1e9)
            pending.timer = loop.call_later(delay_s, self._expire, pending)
        if not self._arrivals:  # all that come in the same turn of the loop are one event
            loop.call_soon(self._arrive)
        self._arrivals.append(request)
        try:
            await asyncio.wait({pending.future})
        except asyncio.CancelledError:
            await self._abandon(pending)
            raise
        if pending.settled_ns:  # a batch had it: a refusal has no way back that matters
            self._reply.note(self._clock() - pending.settled_ns)
        return pending.future.result()

    def close(self, error: PolymuxError | None = None) -> None:
        """Fail what waits and let go of all models; calling it again is fine."""
        if self._closed is not None:
            return
        self._closed = error or ServerGone("the front end is being stopped; send the request again later")
        self._wake_ups.close()
        waiting, self._waiting = list(self._waiting.values()), {}
        for pending in waiting:
            pending.settle(self._closed)
        for instances in self._instances.values():
            with contextlib.suppress(PolymuxError):  # the server may be gone
                instances.close()

    async def _abandon(self, pending: Pending) -> None:
        """Forget a request whose answer nobody wants; when its batch runs, wait until that lets go of the inputs."""
        request = pending.request
        if self._waiting.pop(request.id, None) is not None:
            self._handle(RequestCancelled(request.model, request.id))
            return
        await asyncio.wait({pending.future})
        if pending.future.exception() is None:
            close_all(pending.future.result())

    def _arrive(self) -> None:
        arrived, self._arrivals = self._arrivals, []
        if self._closed is None:
            self._handle(RequestsArrived(arrived))

    def _expire(self, pending: Pending) -> None:
        """Give up a request whose time is over, unless its batch runs already."""
        if self._waiting.pop(pending.request.id, None) is None:
            return
        self.statistics.expired(pending.request.model)
        pending.settle(
            RequestError(503, "the request's timeout expired before a batch took it", retry_after(1))
        )
        self._handle(RequestCancelled(pending.request.model, pending.request.id))

    def _handle(self, event: ServingEvent) -> None:
        if self._closed is not None:
            return
        now = self._clock()
        try:
            decisions: Sequence[ServingDecision] = self._engine.handle(event, now)
            self._failing_since = None
        except BadDecision as bad:
            decisions = bad.decisions
            self._policy_failed(bad, now)
        for decision in decisions:
            self._carry_out(decision, now)

    def _carry_out(self, decision: ServingDecision, now: int) -> None:
        match decision:
            case Dispatch():
                self._start(self._run(decision, now))
            case RejectRequest():
                self._refuse(decision, now)
            case WakeAt(at_ns):
                self._wake_ups.add(at_ns)
            case PrepareInstance(model, device, units):
                ready = self.view.models[model].ready.get(device, ())
                if units in ready:  # said so again, as an event of its own
                    asyncio.get_running_loop().call_soon(self._handle, InstanceReady(model, device, units))
                else:
                    self._start(self._prepare(decision))
            case RetireInstance(model, device, units):
                self.statistics.retired(model, device, units)
                self._instances[model].retire(device, units)

    def _refuse(self, decision: RejectRequest, now: int) -> None:
        pending = self._waiting.pop(decision.request.id, None)
        if pending is None:
            return
        self.statistics.refused(decision.request.model)
        pending.settle(refusal(decision, now))

    async def _run(self, dispatch: Dispatch, start_ns: int) -> None:
        found = (self._waiting.pop(request.id, None) for request in dispatch.requests)
        batch = Batch([pending for pending in found if pending is not None])
        problem: PolymuxError | None = None
        try:
            if batch.pending:
                problem = await self._instances[dispatch.model].run(
                    dispatch.device,
                    dispatch.block or frozenset(),
                    [pending.inputs for pending in batch.pending],
                    batch.outcomes.__setitem__,
                )
        except PolymuxError as error:
            problem = error
        except asyncio.CancelledError:
            problem = Cancelled(TaskStatus.CANCELLED, "", 0, dispatch.model, "the front end ends")
            raise
        except Exception as error:  # a defect costs this batch only
            _log.exception("a batch of model %s failed", dispatch.model)
            problem = PolymuxError(f"the batch failed: {error!r}")
        finally:
            self._end(dispatch, batch, start_ns, problem)
        if isinstance(problem, DeviceFailed | NoDevice):
            self._handle(ServingDeviceLost(dispatch.device, str(problem)))
            if all(device.lost is not None for device in self.view.devices.values()):
                self.close(problem)  # nobody would ever answer what waits

    def _end(self, dispatch: Dispatch, batch: Batch, start_ns: int, problem: PolymuxError | None) -> None:
        now = self._clock()
        lost = problem or PolymuxError("the batch gave no answer for it")
        outcomes = [batch.outcomes.get(index, lost) for index in range(len(batch.pending))]
        failed = bool(outcomes) and all(isinstance(outcome, PolymuxError) for outcome in outcomes)
        # First of all: the next batch starts before the answers go out.
        self._handle(BatchEnded(dispatch.batch, failed))
        self.statistics.batch(dispatch, start_ns, now)
        for pending, outcome in zip(batch.pending, outcomes, strict=True):
            on_time = now <= pending.deadline_ns
            self.statistics.answered(pending.request, now, on_time, isinstance(outcome, PolymuxError))
            pending.settled_ns = now
            pending.settle(outcome)

    async def _prepare(self, decision: PrepareInstance) -> None:
        model, device, units = decision.model, decision.device, decision.units
        key = (model, device, units)
        if key in self._preparing:
            return
        self._preparing.add(key)
        event: ServingEvent = InstanceReady(model, device, units)
        try:
            await asyncio.sleep(self._pauses_s.get(key, 0))
            self.statistics.change_begins(model, device, units)
            await self._instances[model].prepare(device, units)
            self._pauses_s.pop(key, None)
        except PolymuxError as error:
            self._pauses_s[key] = min(_LONGEST_PAUSE_S, 2 * self._pauses_s.get(key, _PAUSE_S))
            _log.error("model %s cannot run on %d units of %s: %s", model, units, device, error)
            event = InstanceFailed(model, device, units, str(error))
        finally:
            self._preparing.discard(key)
        self._handle(event)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _policy_failed(self, bad: BadDecision, now: int) -> None:
        if self._failing_since is None:
            _log.error("scheduling policy %s: %s", self._policy, bad)
            self._failing_since = now
        elif now - self._failing_since > _GIVE_UP_NS:
            _log.critical("scheduling policy %s does nothing but fail; what waits is refused", self._policy)
            self._failing_since = now
            waiting, self._waiting = list(self._waiting.values()), {}
            for pending in waiting:
                pending.settle(RequestError(503, "the scheduling policy failed; see the log", retry_after(5)))
                with contextlib.suppress(BadDecision):
                    self._engine.handle(RequestCancelled(pending.request.model, pending.request.id), now)
        self._wake_ups.add(now + _ASK_AGAIN_NS)
