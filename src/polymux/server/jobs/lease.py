"""One lease: a job as the server holds it, and what the job's process is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic_ns
from typing import TYPE_CHECKING

from polymux.core.ids import DeviceId
from polymux.core.jobs.model import JobSpec, PreemptionLevel
from polymux.segment import GATE_BITS, GATE_BOUNDARY, GATE_OPEN, GATE_OVER, GATE_STEP
from polymux.server.jobs.figures import JobFigures
from polymux.server.jobs.process import JobProcess

if TYPE_CHECKING:
    from polymux.server.session import Session

_SERIALS = 1 << (32 - GATE_BITS)


@dataclass(frozen=True, slots=True)
class Held:
    """A time for which a job held a device, and how it ended."""

    lease: Lease
    device: DeviceId
    start_ns: int
    end_ns: int
    how: str
    taken_back: bool


class Lease:
    """A job from its opening to its end; used under the driver's lock.

    Parameters
    ----------
    spec : JobSpec
    session : Session
    gate : int
        Which gate of the session's segment is this job's.
    process : JobProcess, optional
        What may be stopped; None: it only gives way by itself.
    held : callable
        Told whenever it has held a device.
    """

    def __init__(
        self,
        spec: JobSpec,
        session: Session,
        gate: int,
        process: JobProcess | None,
        held: Callable[[Held], None],
    ) -> None:
        self.spec = spec
        self.session = session
        self.gate = gate
        self.process = process
        self._held = held
        self.device: DeviceId | None = None
        """That it has, or had last."""
        self.holds = False
        self.wants = False
        self.paused = True
        """Whether its process waits at a boundary, or has said that it has no work."""
        self.asked: PreemptionLevel | None = None
        """At which level it was asked to give way and has not yet."""
        self.over: str | None = None
        """Why the lease has ended."""
        self.inner: Lease | None = None
        """The finer lease inside that stands for it."""
        self.outer: Lease | None = None
        self.unaware = all(level.by_system for level in spec.levels)
        """Whether it never looks at its gate."""
        self.figures = JobFigures()
        self._since_ns = 0
        self._asked_ns = 0
        self._way: PreemptionLevel | None = None
        self._serial = 0
        self._number = 0
        self._say(GATE_BOUNDARY)

    @property
    def state(self) -> str:
        """Say in a word what it does."""
        if self.over is not None:
            return "over"
        if self.inner is not None:
            return "lent"
        if self.holds:
            return "runs" if self.asked is None else "gives way"
        if not self.wants:
            return "no work"
        if self.paused or self.process is None or self._way is None:
            return "waits"
        return "stopped" if self._way is PreemptionLevel.STOP else "in the background"

    def begin(self) -> None:
        """Hold up a process that never looks at its gate, until its turn."""
        if self.unaware and self.process is not None:
            self.process.stop()

    def want(self, now: int) -> None:
        """Note that it has work."""
        if not self.wants:
            self.wants, self._since_ns = True, now

    def grant(self, device: DeviceId, number: int, cores: Sequence[int], now: int) -> None:
        """Let it go on, on a device with this number and these cores.

        Notes
        -----
        One that was stopped in the middle of a run and goes on elsewhere looks for its device at its next boundary.
        """
        moved = self.device is not None and self.device != device
        self.figures.grants += 1
        self.figures.moves += moved
        self.figures.waited_ns += now - self._since_ns
        self.holds, self.asked, self.device, self._since_ns = True, None, device, now
        self._number = number
        placed = (moved and not self.paused) or (self.unaware and (moved or self.figures.grants == 1))
        if placed and cores and self.process is not None:
            self.process.move(cores)
        if self.paused or self.unaware or not moved:
            self.open_gate()
        else:
            self._say(GATE_BOUNDARY)
        if self.process is not None:
            self.process.go_on()

    def open_gate(self) -> None:
        """Let its process go on."""
        self.paused = False
        self._say(GATE_OPEN)

    def take_back(self, level: PreemptionLevel, now: int) -> None:
        """Ask it to give way, or see to it that it has."""
        counts = self.figures.taken_back
        counts[level.name.lower()] = counts.get(level.name.lower(), 0) + 1
        if self.asked is None:
            self._asked_ns = now
        self.asked = level
        if not level.by_system:
            self._say(GATE_STEP if level is PreemptionLevel.STEP else GATE_BOUNDARY)
            return
        assert self.process is not None
        self._way = level
        if level is PreemptionLevel.STOP:
            self.process.stop()
        else:
            self.process.make_idle()
        self.give_way(level.name.lower(), monotonic_ns())

    def give_way(self, how: str, now: int) -> None:
        """Note that it holds nothing any more."""
        if not self.holds:
            return
        assert self.device is not None
        if self.asked is not None:
            self.figures.gave_way.add(now - self._asked_ns)
        self.figures.held_ns += now - self._since_ns
        self._held(Held(self, self.device, self._since_ns, now, how, self.asked is not None))
        self.holds, self.asked, self._since_ns = False, None, now

    def rest(self, now: int) -> None:
        """Note that it has no work."""
        self.give_way("no work", now)
        if self.wants:
            self.figures.waited_ns += now - self._since_ns
        self.wants, self.paused = False, True
        self._say(GATE_BOUNDARY)
        if self.process is not None:
            self.process.go_on()

    def end(self, reason: str, now: int) -> None:
        """End it: its process learns why at its next boundary, and goes on without the server."""
        self.give_way("over", now)
        self.over = reason
        self._say(GATE_OVER)
        if self.process is not None:
            self.process.go_on()

    def held_ns(self, now: int) -> int:
        """Time for which it held devices until now."""
        return self.figures.held_ns + (now - self._since_ns if self.holds else 0)

    def waited_ns(self, now: int) -> int:
        """Time for which it waited for devices until now."""
        waits = self.wants and not self.holds
        return self.figures.waited_ns + (now - self._since_ns if waits else 0)

    def _say(self, word: int) -> None:
        if word != GATE_OPEN:
            self._serial = (self._serial + 1) % _SERIALS
            word |= self._serial << GATE_BITS
        self.session.segment.set_gate(self.gate, word, self._number)
