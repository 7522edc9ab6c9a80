"""A job as the simulation knows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from polymux.core.ids import DeviceId
from polymux.core.jobs.decision import Grant
from polymux.core.jobs.model import JobDevice
from polymux.sim.jobs.scenario import JobLoad
from polymux.sim.jobs.slices import Sharer
from polymux.sim.jobs.stream import Launcher
from polymux.sim.jobs.training import Training


class Work:
    """Its progress, where its state is, and how it ended.

    Attributes
    ----------
    token : int
        Changes whenever what was planned for it no longer holds.
    over : bool
    end_ns, done_ns : int, optional
        When it ended, and when it had done all its runs.
    """

    def __init__(self, load: JobLoad, launches_ahead: int) -> None:
        self.load = load
        self.training = Training(load.program, launches_ahead)
        self.launcher: Launcher | Sharer | None = None
        self.begin_run: Callable[[], None] | None = None
        self.token = 0
        self.over = False
        self.end_ns: int | None = None
        self.done_ns: int | None = None
        self.failure: str | None = None
        self.taken_back = 0
        self.moves = 0

    def runs(self, now: int) -> float:
        """Runs that it did until now."""
        return self.training.runs(now) if self.launcher is None else self.launcher.done()

    def pause(self, now: int) -> None:
        """Compute no more until the next grant."""
        self.token += 1
        self.training.pause(now)

    def end(self, now: int, failure: str | None) -> None:
        """Note that it is over."""
        self.pause(now)
        self.over, self.end_ns, self.failure = True, now, failure
        if self.launcher is not None:
            self.launcher.stopped = True

    def note_grant(self, decision: Grant, now: int) -> None:
        """Note that it was given a device, and perhaps moved."""
        self.pause(now)
        self.moves += bool(decision.source is not None and decision.nbytes)

    def resident_nbytes(self, now: int) -> int:
        """What it has in the memory of a device where it does not run: also its activations, in the middle of a run."""
        spec = self.load.spec
        return spec.memory_nbytes if self.training.is_between_runs(now) else spec.needed_nbytes

    def move_ns(self, decision: Grant, device: JobDevice, devices: Mapping[DeviceId, JobDevice]) -> int:
        """Time until its state is there."""
        nbytes = decision.nbytes
        if not nbytes or device.memory == "host":
            return 0
        if self.load.move_ns is not None:
            extra = max(0, nbytes - self.load.spec.memory_nbytes)
            return self.load.move_ns + device.transfer_ns(extra)
        source = None if decision.source is None else devices[decision.source]
        return max(device.transfer_ns(nbytes), source.transfer_ns(nbytes) if source is not None else 0)
