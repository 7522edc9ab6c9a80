"""Memory aware: no queue where its data cannot fit, and where they are when that is cheaper than balance."""

from __future__ import annotations

from collections.abc import Sequence

from polymux.core.decision import Decision, Reject
from polymux.core.event import Event, LoadReported, QueueOpened
from polymux.core.ids import DeviceId, QueueId, StreamId
from polymux.core.snapshot import QueueView, Snapshot, StreamView
from polymux.policy.assignment import AssignmentPolicy
from polymux.policy.cost import HOST, missing_nbytes, room_ns, transfer_ns


class MemoryAware(AssignmentPolicy):
    """Place queues by the memory that they need and where their data are.

    Notes
    -----
    What a queue needs is what its client said when it opened it (``memory_nbytes``), and what it used last. A queue
    that could fit on no device, were it empty, is refused; one that fits only beside nobody else goes where the least
    has to make room. Among the streams that remain the cheapest is taken:

    - moving the data that are in some device's memory elsewhere, by the measured rates of copies;
    - spilling what others have there and bringing it back;
    - waiting: the tasks that wait on the stream times how long its tasks took of late.

    Data in host memory cost nothing here, since they have to come to whichever device the queue gets. A queue that was
    just opened has no data yet; it is expected to use some of its session's, as many bytes as it asked for.
    O(streams) per queue, O(queues of the machine) for one that asks for memory.
    """

    name = "memory_aware"

    def __init__(self) -> None:
        self._task_ns: dict[StreamId, int] = {}

    def decide(self, snapshot: Snapshot, event: Event, now: int) -> list[Decision]:
        """Answer one event; see `Policy.decide`."""
        if isinstance(event, LoadReported):
            self._measure(snapshot, event)
        return super().decide(snapshot, event, now)

    def takes(self, snapshot: Snapshot, queue: QueueView, device: DeviceId) -> bool:
        """Whether a queue's data fit on a device, were it empty."""
        return queue.fits(snapshot.devices[device].spec)

    def place(
        self, snapshot: Snapshot, streams: dict[StreamId, StreamView], queue: QueueView, event: Event
    ) -> Decision:
        """Bind a waiting queue; refuse one that was just opened and can fit nowhere."""
        if isinstance(event, QueueOpened) and event.queue == queue.id:
            message = _why_too_large(snapshot, queue)
            if message is not None:
                return Reject(queue.id, message, reason="no device has the memory that it asks for")
        return super().place(snapshot, streams, queue, event)

    def choose(
        self, queue: QueueView, streams: Sequence[StreamView], snapshot: Snapshot
    ) -> tuple[StreamView, str]:
        """Pick the stream with the least cost; fewer bound queues, then the turn, decide between equals."""
        data = self._expected_data(snapshot, queue)
        cost_ns = {
            device: transfer_ns(snapshot, data, device) + room_ns(snapshot, queue, device)
            for device in {stream.device for stream in streams}
        }
        missing = {device: missing_nbytes(snapshot, queue, device) for device in cost_ns}
        fitting = [stream for stream in streams if not missing[stream.device]]

        def cost(stream: StreamView) -> tuple[int, int, int, int]:
            total_ns = cost_ns[stream.device] + self._wait_ns(stream)
            return (total_ns, stream.queues, stream.turn, stream.rank)

        chosen = min(fitting or streams, key=cost)
        return chosen, (
            f"{chosen.id} costs least: {cost_ns[chosen.device]} ns to bring its data and make room for them,"
            f" {self._wait_ns(chosen)} ns of tasks before its own"
        )

    def _wait_ns(self, stream: StreamView) -> int:
        tasks = stream.load.pending + max(0, stream.queues - stream.load.queues)
        return tasks * self._task_ns.get(stream.id, 0)

    def _measure(self, snapshot: Snapshot, event: LoadReported) -> None:
        tasks: dict[StreamId, int] = {}
        busy_ns: dict[StreamId, int] = {}
        for queue, load in event.queues.items():
            view = snapshot.queues.get(queue)
            if view is not None and view.stream is not None and load.tasks:
                tasks[view.stream] = tasks.get(view.stream, 0) + load.tasks
                busy_ns[view.stream] = busy_ns.get(view.stream, 0) + load.busy_ns
        for stream, count in tasks.items():
            newest_ns = busy_ns[stream] // count
            mean_ns = self._task_ns.get(stream, newest_ns)
            self._task_ns[stream] = mean_ns + (newest_ns - mean_ns) // 4

    def _expected_data(self, snapshot: Snapshot, queue: QueueView) -> dict[str, int]:
        """Bytes by device that a queue has, or is expected to use, in device memory."""
        data = dict(snapshot.load_of(queue.id).data)
        if not data and queue.memory_nbytes:
            data = _of_session(snapshot, queue)
            total_nbytes = sum(data.values())
            if total_nbytes > queue.memory_nbytes:
                data = {place: nbytes * queue.memory_nbytes // total_nbytes for place, nbytes in data.items()}
        data.pop(HOST, None)
        return data


def _of_session(snapshot: Snapshot, queue: QueueView) -> dict[str, int]:
    data: dict[str, int] = {}
    for name, load in snapshot.loads.items():
        other = snapshot.queues.get(QueueId(name))
        if other is not None and other.session == queue.session:
            for place, nbytes in load.data.items():
                data[place] = data.get(place, 0) + nbytes
    return data


def _why_too_large(snapshot: Snapshot, queue: QueueView) -> str | None:
    """Say why a queue can be placed nowhere, whatever becomes of the devices; None: it can."""
    allowed = {
        device: view.spec for device, view in snapshot.devices.items() if queue.pinned in (None, device)
    }
    if not allowed or any(queue.fits(spec) for spec in allowed.values()):
        return None
    sizes = ", ".join(f"{device} has {spec.memory_nbytes}" for device, spec in allowed.items())
    where = "no device has" if queue.pinned is None else "the device to which it is pinned does not have"
    return (
        f"the queue asks for {queue.memory_nbytes} bytes of data and {where} that much memory: {sizes}. Divide the"
        " data over several queues, or ask for less"
    )
