"""A stream in virtual time: which of its queues gives it the next task, and the tasks that nobody can call back."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from polymux.core.device_spec import StreamSpec
from polymux.core.ids import DeviceId, QueueId, SessionId
from polymux.sim.model import ModelApplication, ModelDevice, ModelQueue


@dataclass(slots=True, eq=False)
class SimQueue:
    """A queue while the simulation runs."""

    id: QueueId
    session: SessionId
    application: ModelApplication
    model: ModelQueue
    launched: int = 0
    """Tasks given to a device, from the first."""
    ended: int = 0
    weight: int = 100
    stream: SimStream | None = None
    revoked: bool = False
    place: DeviceId | None = None
    """Where its data is; None: the host."""
    ahead: DeviceId | None = None
    """Where the data that is only read has been copied ahead."""
    reported_ended: int = 0
    busy_ns: int = 0
    reported_busy_ns: int = 0

    @property
    def in_flight(self) -> int:
        """Tasks that a device has and that have not ended."""
        return self.launched - self.ended

    @property
    def waiting(self) -> int:
        """Tasks that no device has."""
        return self.model.tasks - self.launched


@dataclass(slots=True, eq=False)
class SimStream:
    """One stream.

    Notes
    -----
    The next task comes from the queue with the highest priority, then of the session with the least device time per
    weight, then in turn: the rule of the runtime's own workers.
    """

    spec: StreamSpec
    device: ModelDevice
    bound: dict[QueueId, SimQueue] = field(default_factory=dict)
    fifo: deque[SimQueue] = field(default_factory=deque)
    """Whose tasks have been launched, the one that runs first."""
    running: bool = False
    busy_ns: int = 0
    reported_busy_ns: int = 0
    _virtual: dict[SessionId, float] = field(default_factory=dict)
    _turn: int = 0
    _turns: dict[QueueId, int] = field(default_factory=dict)

    def launch(self) -> None:
        """Give the device tasks until it has as many as it may."""
        while len(self.fifo) < self.device.launch_ahead and (queue := self._choose()) is not None:
            queue.launched += 1
            self._turn += 1
            self._turns[queue.id] = self._turn
            cost_ns = self.device.task_ns(queue.model.task_ns)
            self._virtual[queue.session] += cost_ns / queue.weight
            self.fifo.append(queue)

    def _choose(self) -> SimQueue | None:
        ready = [queue for queue in self.bound.values() if not queue.revoked and queue.waiting]
        if not ready:
            return None
        sessions = {queue.session for queue in ready}
        active = [self._virtual[session] for session in sessions if session in self._virtual]
        least = min(active, default=0.0)
        for session in sessions - self._virtual.keys():
            self._virtual[session] = least  # no credit for the time before it came
        for session in self._virtual.keys() - sessions:
            del self._virtual[session]
        return min(
            ready,
            key=lambda queue: (
                -queue.application.priority,
                self._virtual[queue.session],
                self._turns.get(queue.id, 0),
            ),
        )
