"""A driver of the engine without threads: does what the decisions say and insists on what a driver relies on."""

from __future__ import annotations

import os

from polymux.core.decision import (
    Answer,
    Bind,
    Decision,
    FailAll,
    FailHead,
    Migrate,
    Prepare,
    Reject,
    Revoke,
    Stay,
    WakeAt,
    Weigh,
)
from polymux.core.device_spec import DeviceSpec, Share, StreamSpec
from polymux.core.event import (
    MAX_WEIGHT,
    DeviceAdded,
    DeviceLost,
    DeviceWished,
    Event,
    HeldHead,
    HomePossible,
    KernelMissing,
    MigrateRequested,
    QueueClosed,
    QueueOpened,
    QueuePrepared,
    QueueReleased,
)
from polymux.core.ids import DeviceId, QueueId, SessionId, StreamId, stream_id
from polymux.core.snapshot import QueueState
from polymux.core.status import TaskStatus
from polymux.policy import registry
from polymux.sched.engine import Engine
from polymux.sched.recording import QUEUES, Step, write_step

POLICIES = [
    *registry.names(),
    "pinned=cpu:1",
    "weighted_fair=app1:1,app2:3",
    *os.environ.get("POLYMUX_POLICIES", "").split(),
]
"""Every policy that is installed, those options that change what a policy does, and what the environment names."""


CAPACITY_NBYTES = 1 << 30
"""Memory of every device here."""


def added(device: str, streams: int = 1, *parts: tuple[int, ...]) -> DeviceAdded:
    """Make the event that a device with some streams is there, and with others that are a part of these."""
    name = DeviceId(device)
    api = device.partition(":")[0]
    shares = (*[Share()] * streams, *map(Share, parts)) if parts else ()
    count = streams + len(parts)
    spec = DeviceSpec(name, api, f"a {api} device", CAPACITY_NBYTES, "host", 4, count, (api,), shares=shares)
    return DeviceAdded(
        spec, tuple(StreamSpec(stream_id(name, i), name, spec.share_of(i)) for i in range(count))
    )


def opened(
    queue: str, pinned: str | None = None, priority: int = 0, weight: int = 100, memory_nbytes: int = 0
) -> QueueOpened:
    """Make the event that a queue was opened, `pinned` to a device or a stream."""
    session = SessionId(int(queue.partition(".")[0]))
    pin = None if pinned is None else DeviceId(pinned.partition("/")[0])
    stream = StreamId(pinned) if pinned is not None and "/" in pinned else None
    return QueueOpened(QueueId(queue), session, f"app{session}", priority, pin, weight, memory_nbytes, stream)


class Driver:
    """Carries decisions out on dictionaries and checks each one as it comes.

    Attributes
    ----------
    bound : dict
        Queues that an accelerator thread holds, with its stream; until the thread lets go.
    revoked : dict
        Those of them that it was told to let go of.
    open : dict
        Queues that their application has open, with their pins.
    closing : set
        Bound queues that were closed; an application may have opened one of that name again meanwhile.
    failing : set
        Open queues whose tasks all fail.
    needed_nbytes : dict
        What queues asked for when they were opened.
    streams : dict
        Streams of devices that work, with their device.
    parts : set
        Those of them that are a part of another one.
    pins : dict
        Streams to which open queues are pinned.
    asked : dict
        Migration requests without an answer, with queue and device.
    preparing : dict
        Bound queues whose data are being copied, with the device.
    migrations : int
        Times that a queue was bound to another device than before.
    """

    def __init__(self, policy: str) -> None:
        self.policy = policy
        self.engine = Engine(registry.load(policy))
        self.now = 0
        self.bound: dict[QueueId, StreamId] = {}
        self.revoked: dict[QueueId, None] = {}
        self.open: dict[QueueId, DeviceId | None] = {}
        self.closing: set[QueueId] = set()
        self.failing: set[QueueId] = set()
        self.streams: dict[StreamId, DeviceId] = {}
        self.parts: set[StreamId] = set()
        self.pins: dict[QueueId, StreamId] = {}
        self.asked: dict[int, tuple[QueueId, DeviceId]] = {}
        self.needed_nbytes: dict[QueueId, int] = {}
        self.preparing: dict[QueueId, DeviceId] = {}
        self.migrations = 0
        self.held_at: StreamId | None = None
        self._last: dict[QueueId, DeviceId] = {}
        self.recorded: list[str] = [QUEUES.write_header(policy)]

    def send(self, event: Event, after_ns: int = 1000) -> list[Decision]:
        """Give the engine an event, carry out what it decides, and check that nothing is forgotten."""
        self.now += after_ns
        self._note(event)
        decisions = self.engine.handle(event, self.now)
        self.recorded.append(write_step(Step(self.now, event, tuple(decisions))))
        for decision in decisions:
            assert getattr(decision, "reason"), f"no reason: {decision}"  # noqa: B009
            self._carry_out(decision)
        self._check_answers(event, decisions)
        self._check_nothing_forgotten()
        self._check_snapshot()
        return decisions

    def settle(self) -> None:
        """Let every thread let go of what it was told to, until nothing moves any more."""
        for _ in range(10_000):
            if self.preparing:
                queue, device = next(iter(self.preparing.items()))
                self.send(QueuePrepared(queue, device))
            elif self.revoked:
                self.send(QueueReleased(next(iter(self.revoked))))
            else:
                return
        raise AssertionError(f"queues move for ever: {list(self.revoked)}")

    def device_of(self, queue: str) -> str | None:
        """Name the device on which a queue is bound."""
        stream = self.bound.get(QueueId(queue))
        return None if stream is None else str(stream.partition("/")[0])

    def _note(self, event: Event) -> None:
        match event:
            case DeviceAdded():
                self.streams |= {stream.id: stream.device for stream in event.streams}
                self.parts |= {stream.id for stream in event.streams if stream.share.units is not None}
            case DeviceLost():
                self.streams = {s: device for s, device in self.streams.items() if device != event.device}
                self.parts &= self.streams.keys()
                self.preparing = {q: device for q, device in self.preparing.items() if device != event.device}
            case QueueOpened():
                self.open[event.queue] = event.pinned
                self.pins.pop(event.queue, None)
                if event.pinned_stream is not None:
                    self.pins[event.queue] = event.pinned_stream
                self.needed_nbytes[event.queue] = event.memory_nbytes
                self._last.pop(event.queue, None)
            case QueueClosed():
                if event.queue in self.open and event.queue in self.bound:
                    self.closing.add(event.queue)
                self.open.pop(event.queue, None)
                self.failing.discard(event.queue)
                self.preparing.pop(event.queue, None)
            case QueueReleased() | KernelMissing() | HomePossible() | DeviceWished():
                self.held_at = self.bound.pop(event.queue, None)
                self.closing.discard(event.queue)
                self.revoked.pop(event.queue, None)
                self.preparing.pop(event.queue, None)
            case QueuePrepared():
                if self.preparing.get(event.queue) == event.device:
                    del self.preparing[event.queue]
            case MigrateRequested():
                self.asked[event.request] = (event.queue, event.device)
                if self.device_of(event.queue) == event.device:
                    self.preparing.pop(event.queue, None)

    def _carry_out(self, decision: Decision) -> None:
        match decision:
            case Bind():
                self._bind(decision)
            case Revoke():
                assert decision.queue in self.bound, f"not bound: {decision}"
                assert decision.queue not in self.revoked, f"revoked twice: {decision}"
                self.revoked[decision.queue] = None
                self.preparing.pop(decision.queue, None)
            case Prepare():
                assert decision.queue in self.bound, f"not bound: {decision}"
                assert decision.queue not in self.revoked, f"revoked: {decision}"
                assert decision.device in self.streams.values(), f"no such device works: {decision}"
                self.preparing[decision.queue] = decision.device
            case Weigh():
                assert decision.queue in self.bound, f"not bound: {decision}"
                assert 1 <= decision.weight <= MAX_WEIGHT
            case FailAll():
                assert decision.queue in self.open, f"not open: {decision}"
                assert decision.queue not in self.bound, f"bound: {decision}"
                assert decision.message
                self.failing.add(decision.queue)
            case Reject():
                assert decision.message
                del self.open[decision.queue]
            case Answer():
                queue, device = self.asked.pop(decision.request)
                assert not decision.ok or self.device_of(queue) == device, f"not there: {decision}"
                assert decision.message
            case FailHead():
                assert decision.queue in set(self.open) - self.closing, f"not open: {decision}"
            case WakeAt():
                assert decision.at_ns > self.now
            case Migrate() | Stay():
                raise AssertionError(f"no decision for a driver: {decision}")

    def _bind(self, decision: Bind) -> None:
        assert decision.queue in self.open, f"not open: {decision}"
        assert decision.queue not in self.bound, f"bound twice: {decision}"
        assert decision.stream in self.streams, f"no such stream works: {decision}"
        assert self.open[decision.queue] in (None, self.streams[decision.stream]), (
            f"pinned elsewhere: {decision}"
        )
        assert decision.stream in self._allowed(decision.queue), f"not for this queue: {decision}"
        assert 1 <= decision.weight <= MAX_WEIGHT
        self.bound[decision.queue] = decision.stream
        device = self.streams[decision.stream]
        self.migrations += self._last.get(decision.queue, device) != device
        self._last[decision.queue] = device
        self.failing.discard(decision.queue)

    def _allowed(self, queue: QueueId) -> list[StreamId]:
        """List the streams that work on which a queue may run, as far as a pin to a stream counts."""
        pin = self.pins.get(queue)
        return [s for s in self.streams if (s not in self.parts if pin is None else s == pin)]

    def _check_answers(self, event: Event, decisions: list[Decision]) -> None:
        if isinstance(event, HeldHead) and self.held_at is not None and event.queue in self.open:
            failed = [d for d in decisions if isinstance(d, FailHead)]
            bound = [d for d in decisions if isinstance(d, Bind | FailAll) and d.queue == event.queue]
            assert len(bound) == 1, f"{event} got {decisions}"
            assert not failed or isinstance(event, KernelMissing)
            assert not failed or self.bound[event.queue] == self.held_at, f"failed and moved: {decisions}"
            assert all(d.status is TaskStatus.NO_DEVICE for d in failed)
        moving = self.revoked.keys() | self.preparing.keys()
        assert all(queue in moving for queue, _ in self.asked.values()), f"never answered: {self.asked}"

    def _check_nothing_forgotten(self) -> None:
        """Every open queue is bound, or can be bound nowhere and fails its tasks; lost devices keep none."""
        for queue, pinned in self.open.items():
            usable = [s for s in self._allowed(queue) if pinned in (None, self.streams[s])]
            if queue not in self.bound:
                fits = queue in self.pins or self.needed_nbytes[queue] <= CAPACITY_NBYTES
                usable = usable if fits else []
                assert not usable, f"{queue} is bound nowhere though {usable} work"
                assert queue in self.failing, f"{queue} hangs: bound nowhere, its tasks do not fail"
        for queue, stream in self.bound.items():
            if queue not in self.open or queue in self.closing or stream not in self.streams:
                assert queue in self.revoked, f"{queue} is still drained at {stream}"

    def _check_snapshot(self) -> None:
        snapshot = self.engine.snapshot()
        assert set(snapshot.streams) == set(self.streams) - self.parts
        assert {q for q, v in snapshot.queues.items() if v.state is not QueueState.CLOSING} <= set(self.open)
        assert not snapshot.waiting
        for queue, view in snapshot.queues.items():
            moving = (QueueState.REVOKING, QueueState.PREPARING)
            assert view.target is None or view.state in moving, f"{queue} moves though it is {view.state}"
            assert view.state is not QueueState.HELD, f"{queue} hangs: its head is held and nobody is asked"
            preparing = view.target if view.state is QueueState.PREPARING else None
            assert self.preparing.get(queue) == preparing
            assert view.device is None or view.device == self.bound[queue].partition("/")[0]
        for stream in snapshot.streams.values():
            bound = [q for q, v in snapshot.queues.items() if v.stream == stream.id]
            assert stream.queues == len(bound)
            assert all(self.bound[q] == stream.id for q in bound)
