"""The front end and its clients as work of their own, on the cores of a device where batches compute as well.

A request costs processor time besides its batch: a client writes it, the front end reads it, has its batch begin and
writes the answer, and the client reads that. Where all of them are on the device's own cores, they and the batches make
each other slower.

The model: the clients together and the front end are two threads that do one thing after the other. A thread that
finds a core idle has it, and its caches and memory bandwidth are what a batch beside it lacks. A thread that finds none
shares a core with a thread of a batch; the batch then loses at least its part of that core's time, and as much as if
all its cores stood still if its threads wait for each other. How fast the threads and the batches are then is measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from polymux.core.errors import InvalidRequest
from polymux.core.ids import DeviceId
from polymux.core.serving.model import ModelName

TIMER_NS = 1_000_000
"""Resolution of the timers of an event loop."""
_MOST_LOSS = 0.95


@dataclass(frozen=True, slots=True)
class HostWork:
    """Processor time that a request takes besides its batch.

    Parameters
    ----------
    send_ns : int
        Of a client, to write the request.
    receive_ns : int
        Of the front end, until the scheduler knows the request.
    pieces : int
        In which the front end reads it; what else it has to do gets its turn between them.
    start_ns, further_ns : int
        Of the front end, to have a batch of one begin on the device and to learn of its end, and for each further item.
    reply_ns : int
        Of the front end, to write the answer or the refusal.
    take_ns : int
        Of a client, to read it.
    """

    send_ns: int
    receive_ns: int
    reply_ns: int
    take_ns: int
    pieces: int = 1
    start_ns: int = 0
    further_ns: int = 0

    def __post_init__(self) -> None:
        times = (
            self.send_ns, self.receive_ns, self.start_ns, self.further_ns, self.reply_ns, self.take_ns
        )  # fmt: skip
        if min(times) < 0 or self.pieces < 1:
            raise InvalidRequest(f"work of a request: {self}; give times of 0 or more and 1 piece or more")


@dataclass(frozen=True, slots=True)
class Host:
    """The front end and its clients, on the cores of a device.

    Parameters
    ----------
    device : DeviceId
        Whose units are the cores.
    work : mapping of ModelName to HostWork
        For each model.
    pressed_speed : float
        Speed of a thread that shares its core with a thread of a batch; 1: as if it had a core for itself.
    drag : mapping of ModelName to float
        Time that a batch on all units loses, over the time that one such thread computes: from 1 / units, where the
        other units go on, to 1, where all wait for the one. Without a number: 1.
    beside : mapping of ModelName to float
        By what part a batch takes longer for each thread that computes on a core without a batch. Without a number: 0.
    beside_speed : float
        Speed of such a thread beside batches.
    timer_ns : int
        The front end looks at the time so often: it wakes up later than it meant to by up to this.
    """

    device: DeviceId
    work: Mapping[ModelName, HostWork]
    pressed_speed: float = 0.5
    drag: Mapping[ModelName, float] = field(default_factory=dict)
    beside: Mapping[ModelName, float] = field(default_factory=dict)
    beside_speed: float = 1.0
    timer_ns: int = TIMER_NS

    def __post_init__(self) -> None:
        for name in ("pressed_speed", "beside_speed"):
            if not 0 < getattr(self, name) <= 1:
                raise InvalidRequest(f"host: {name} is {getattr(self, name)}; give more than 0 and up to 1")
        if min((*self.drag.values(), *self.beside.values()), default=0.0) < 0 or self.timer_ns < 1:
            raise InvalidRequest(
                f"host: drag {dict(self.drag)}, beside {dict(self.beside)}, timer {self.timer_ns} ns; give numbers"
                " of 0 or more and a timer above 0"
            )

    def thread_speed(self, threads: int, busy: int, units: int) -> float:
        """Mean speed of the threads.

        Parameters
        ----------
        threads : int
            That have something to do, 1 or more.
        busy : int
            Units of the batches that run.
        units : int
            Of the device.
        """
        if not busy:
            return min(1.0, units / threads)
        idle = min(threads, units - busy)
        return (idle * self.beside_speed + (threads - idle) * self._pressed(threads - idle, busy)) / threads

    def slowdown(self, model: ModelName, own: int, threads: int, busy: int, units: int) -> float:
        """Time of a batch on `own` units over its time without the threads; the other numbers as in `thread_speed`."""
        idle = min(threads, units - busy)
        slower = 1 + self.beside.get(model, 0.0) * idle
        pressed = threads - idle
        if not pressed:
            return slower
        drag = self.drag.get(model, 1.0)
        waits = 1.0 if units == 1 else min(1.0, max(0.0, (drag - 1 / units) / (1 - 1 / units)))
        on_it = pressed * own / busy  # of the threads, those that are on the cores of this batch
        shape = ((1 - waits) * on_it / own + waits * min(1.0, on_it)) / ((1 - waits) / units + waits)
        loss = min(_MOST_LOSS, self._pressed(pressed, busy) * drag * shape)
        return slower / (1 - loss)

    def _pressed(self, pressed: int, busy: int) -> float:
        """Speed of each of the threads that share cores with batches."""
        return self.pressed_speed * min(1.0, busy / pressed) if pressed else 0.0
