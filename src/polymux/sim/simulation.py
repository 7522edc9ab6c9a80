"""Plays a model out: carries the engine's decisions out in virtual time."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from polymux.core.decision import Bind, Decision, FailAll, Prepare, Reject, Revoke, WakeAt, Weigh
from polymux.core.device_spec import DeviceSpec, StreamSpec
from polymux.core.errors import InvalidRequest
from polymux.core.event import (
    DeviceAdded,
    DeviceLoad,
    Event,
    LoadReported,
    QueueClosed,
    QueueLoad,
    QueueOpened,
    QueuePrepared,
    QueueReleased,
    StreamLoad,
    Tick,
)
from polymux.core.ids import DeviceId, QueueId, SessionId, StreamId, queue_id, stream_id
from polymux.policy import registry
from polymux.policy.interface import Policy
from polymux.sched.engine import Engine
from polymux.sim.model import ModelApplication, ModelDevice
from polymux.sim.outcome import ApplicationOutcome, Outcome, Span
from polymux.sim.stream import SimQueue, SimStream

HOST = "host"
"""The name of host memory in load reports."""


def simulate(
    policy: str, devices: Sequence[ModelDevice], applications: Sequence[ModelApplication]
) -> Outcome:
    """Run applications on devices under a policy.

    Parameters
    ----------
    policy : str
        As ``polymux up --policy`` takes it.
    devices : sequence of ModelDevice
    applications : sequence of ModelApplication
        With different names.

    Returns
    -------
    Outcome

    Raises
    ------
    InvalidRequest
        For an unknown policy, and devices or applications with the same name.
    BadDecision
        When the policy decides what must not be carried out.
    """
    for what, names in (
        ("device", [str(device.id) for device in devices]),
        ("application", [application.name for application in applications]),
    ):
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise InvalidRequest(f"{what} {twice!r} is given twice; name each differently")
    return _Simulation(registry.load(policy), devices, applications).run()


class _Simulation:
    def __init__(
        self, policy: Policy, devices: Sequence[ModelDevice], applications: Sequence[ModelApplication]
    ) -> None:
        self._engine = Engine(policy)
        self._devices = {device.id: device for device in devices}
        self._streams: dict[StreamId, SimStream] = {}
        self._queues: dict[QueueId, SimQueue] = {}
        self._outcomes = [ApplicationOutcome(app.name, app.arrives_ns) for app in applications]
        self._spans: list[Span] = []
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._order = 0
        self._now = 0
        self._left = sum(len(app.queues) for app in applications)
        for device in devices:
            self._add(device)
        for number, application in enumerate(applications, start=1):
            self._at(application.arrives_ns, _call(self._arrive, SessionId(number), application))

    def run(self) -> Outcome:
        while self._agenda and self._left:
            self._now, _, action = heapq.heappop(self._agenda)
            action()
        return Outcome(self._outcomes, self._spans)

    def _at(self, at_ns: int, action: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._agenda, (at_ns, self._order, action))

    def _add(self, device: ModelDevice) -> None:
        streams = tuple(StreamSpec(stream_id(device.id, i), device.id) for i in range(device.streams))
        for stream in streams:
            self._streams[stream.id] = SimStream(stream, device)
        api = device.id.partition(":")[0]
        spec = DeviceSpec(
            device.id,
            api,
            str(device.id),
            device.memory_nbytes,
            "own",
            device.streams,
            device.streams,
            (api,),
        )
        self._handle(DeviceAdded(spec, streams))

    def _arrive(self, session: SessionId, application: ModelApplication) -> None:
        for index, model in enumerate(application.queues):
            queue = SimQueue(queue_id(session, index), session, application, model, weight=application.weight)
            self._queues[queue.id] = queue
            self._handle(self._report())
            self._handle(
                QueueOpened(
                    queue.id,
                    session,
                    application.name,
                    application.priority,
                    model.pinned,
                    application.weight,
                    model.nbytes,
                )
            )
            if queue.id in self._queues and not model.tasks:
                self._finish(queue)

    # ---- decisions ----

    def _handle(self, event: Event) -> None:
        for decision in self._engine.handle(event, self._now):
            self._carry_out(decision)
        for stream in self._streams.values():
            self._go_on(stream)

    def _carry_out(self, decision: Decision) -> None:
        match decision:
            case Bind():
                self._bind(self._queues[decision.queue], self._streams[decision.stream], decision.weight)
            case Revoke():
                queue = self._queues[decision.queue]
                queue.revoked = True
                self._release_if_idle(queue)
            case Prepare():
                self._prepare(self._queues[decision.queue], decision.device)
            case Weigh():
                self._queues[decision.queue].weight = decision.weight
            case Reject() | FailAll():
                self._refuse(decision.queue, decision.message)
            case WakeAt():
                self._at(decision.at_ns, self._tick)

    def _bind(self, queue: SimQueue, stream: SimStream, weight: int) -> None:
        last = queue.place
        queue.stream, queue.revoked, queue.weight = stream, False, weight
        stream.bound[queue.id] = queue
        if last is not None and last != stream.device.id:
            self._outcome(queue).migrations += 1

    def _prepare(self, queue: SimQueue, device: DeviceId) -> None:
        target = self._devices[device]
        needed, free = queue.model.nbytes, target.memory_nbytes - self._used_nbytes(device)
        if needed > free:
            problem = f"its data takes {needed} bytes, {device} has {free} bytes free"
            self._at(self._now, lambda: self._handle(QueuePrepared(queue.id, device, problem)))
            return

        def done() -> None:
            if queue.id in self._queues:
                queue.ahead = device
                self._handle(QueuePrepared(queue.id, device, None))

        legs = [target] if queue.place is None else [self._devices[queue.place], target]
        self._at(self._now + sum(leg.copy_ns(queue.model.read_nbytes) for leg in legs), done)

    def _refuse(self, queue_id: QueueId, message: str) -> None:
        queue = self._queues.pop(queue_id)
        self._outcome(queue).refused.append(message)
        self._left -= 1

    def _tick(self) -> None:
        self._handle(self._report())
        self._handle(Tick())

    # ---- streams ----

    def _go_on(self, stream: SimStream) -> None:
        stream.launch()
        if stream.running or not stream.fifo:
            return
        stream.running = True
        queue = stream.fifo[0]
        copied_nbytes, copy_ns = self._bring(queue, stream.device)
        duration_ns = copy_ns + stream.device.task_ns(queue.model.task_ns)
        span = Span(
            queue.id, queue.ended + 1, stream.spec.id, self._now, self._now + duration_ns, copied_nbytes
        )
        self._at(span.end_ns, _call(self._end_task, stream, queue, span))

    def _bring(self, queue: SimQueue, device: ModelDevice) -> tuple[int, int]:
        """Move a queue's data to where its task runs: bytes and time."""
        if queue.place == device.id:
            return 0, 0
        legs = [device] if queue.place is None else [self._devices[queue.place], device]
        nbytes = queue.model.written_nbytes if queue.ahead == device.id else queue.model.nbytes
        queue.place, queue.ahead = device.id, None
        return nbytes, sum(leg.copy_ns(nbytes) for leg in legs)

    def _end_task(self, stream: SimStream, queue: SimQueue, span: Span) -> None:
        duration_ns = span.end_ns - span.start_ns
        stream.fifo.popleft()
        stream.running = False
        stream.busy_ns += duration_ns
        queue.ended += 1
        queue.busy_ns += duration_ns
        self._spans.append(span)
        outcome = self._outcome(queue)
        outcome.busy_ns[stream.device.id] = outcome.busy_ns.get(stream.device.id, 0) + duration_ns
        if queue.ended == queue.model.tasks:
            self._finish(queue)
        else:
            self._release_if_idle(queue)
        self._go_on(stream)

    def _finish(self, queue: SimQueue) -> None:
        self._left -= 1
        outcome = self._outcome(queue)
        outcome.ended_ns = self._now  # the last of its queues to end says when the application has
        self._handle(QueueClosed(queue.id))
        self._release_if_idle(queue)

    def _release_if_idle(self, queue: SimQueue) -> None:
        stream = queue.stream
        if not queue.revoked or queue.in_flight or stream is None:
            return
        queue.stream, queue.revoked = None, False
        del stream.bound[queue.id]
        if queue.ended == queue.model.tasks:
            del self._queues[queue.id]
        self._at(self._now, lambda: self._handle(QueueReleased(queue.id)))

    # ---- accounts ----

    def _report(self) -> LoadReported:
        loads = {}
        for stream_id_, stream in self._streams.items():
            pending = sum(queue.waiting + queue.in_flight for queue in stream.bound.values())
            loads[stream_id_] = StreamLoad(
                pending, stream.busy_ns - stream.reported_busy_ns, len(stream.bound)
            )
            stream.reported_busy_ns = stream.busy_ns
        queues = {}
        for queue in self._queues.values():
            data = {HOST if queue.place is None else str(queue.place): queue.model.nbytes}
            tasks, busy_ns = queue.ended - queue.reported_ended, queue.busy_ns - queue.reported_busy_ns
            queues[queue.id] = QueueLoad(queue.model.tasks - queue.ended, tasks, busy_ns, data)
            queue.reported_ended, queue.reported_busy_ns = queue.ended, queue.busy_ns
        devices = {}
        for device in self._devices.values():
            ps_per_byte = round(1e12 / device.bandwidth_bytes_per_s)
            devices[device.id] = DeviceLoad(self._used_nbytes(device.id), ps_per_byte, ps_per_byte)
        return LoadReported(loads, queues, devices)

    def _used_nbytes(self, device: DeviceId) -> int:
        return sum(q.model.nbytes for q in self._queues.values() if device in (q.place, q.ahead))

    def _outcome(self, queue: SimQueue) -> ApplicationOutcome:
        return self._outcomes[queue.session - 1]


def _call(function: Callable[..., None], *arguments: object) -> Callable[[], None]:
    return lambda: function(*arguments)
