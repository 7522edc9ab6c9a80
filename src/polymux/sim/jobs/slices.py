"""What happens when nobody keeps processes apart but the driver: all that have work get the same part of the time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil

from polymux.sim.jobs.program import Program


@dataclass(slots=True)
class Sharer:
    """A process that does runs of a program.

    Parameters
    ----------
    program : Program
    runs : int
        That have ended.
    left_ns : float
        Device time that this run still needs.
    stopped : bool
        Whether it computes no more.
    """

    program: Program
    runs: int = 0
    left_ns: float = 0.0
    stopped: bool = False

    def begin_again(self) -> None:
        """Note that a run has ended."""
        self.runs += 1

    def done(self) -> float:
        """Runs that it did, with the part of the one it is in, up to when its device was last looked at."""
        return self.runs + (1 - self.left_ns / self.program.run_ns if self.left_ns else 0.0)


@dataclass(slots=True)
class Slices:
    """A device whose time is divided equally among the processes that have work, in slices too short to matter.

    This is how drivers share a device among processes where nothing else is set up. What switching between them costs
    is not counted.
    """

    _active: list[tuple[Sharer, Callable[[], None]]] = field(default_factory=list)
    _looked_ns: int = 0
    token: int = 0
    """Changes with everything that changes when the next run ends."""

    def add(self, sharer: Sharer, ended: Callable[[], None], now: int) -> None:
        """Begin a run; `ended` is called when it has ended."""
        self.advance(now)
        sharer.left_ns = float(sharer.program.run_ns)
        self._active.append((sharer, ended))

    def advance(self, now: int) -> None:
        """Charge everybody up to now, and let go of those that were stopped."""
        if self._active and now > self._looked_ns:
            part = (now - self._looked_ns) / len(self._active)
            for sharer, _ in self._active:
                sharer.left_ns = max(0.0, sharer.left_ns - part)
        self._looked_ns = now
        self._active = [entry for entry in self._active if not entry[0].stopped]

    def next_end_ns(self, now: int) -> int | None:
        """When the next run ends if nothing else happens; None: nobody has work."""
        self.advance(now)
        self.token += 1
        if not self._active:
            return None
        return now + ceil(min(sharer.left_ns for sharer, _ in self._active) * len(self._active))

    def take_ended(self, now: int) -> list[Callable[[], None]]:
        """Take out the runs that have ended by now, and return what is to be called."""
        self.advance(now)
        ended = [call for sharer, call in self._active if sharer.left_ns < 1]
        for sharer, _ in self._active:
            sharer.left_ns = 0.0 if sharer.left_ns < 1 else sharer.left_ns
        self._active = [entry for entry in self._active if entry[0].left_ns]
        return ended
