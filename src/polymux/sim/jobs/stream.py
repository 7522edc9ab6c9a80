"""What happens when nobody keeps jobs and requests apart: their kernels go into one stream as they are launched."""

from __future__ import annotations

from dataclasses import dataclass, field

from polymux.sim.jobs.program import Program


@dataclass(slots=True)
class Stream:
    """A device that runs kernels in the order in which they were launched, whoever launched them.

    This is how threads of one framework process share a device, which SwitchFlow compares itself with.

    Parameters
    ----------
    free_ns : int
        When everything that was launched has ended.
    """

    free_ns: int = 0

    def launch(self, time_ns: int, now: int) -> int:
        """Launch a kernel; return when it ends."""
        self.free_ns = max(self.free_ns, now) + time_ns
        return self.free_ns


@dataclass(slots=True)
class Launcher:
    """A thread that launches the kernels of a program, run after run or once.

    Parameters
    ----------
    program : Program
    stream : Stream
    runs : int
        That have ended.
    index : int
        Kernels of this run that were launched.
    stopped : bool
        Whether it launches no more.
    """

    program: Program
    stream: Stream
    runs: int = 0
    index: int = 0
    stopped: bool = False
    _syncs: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        self._syncs = frozenset(self.program.syncs)

    def launch(self, now: int) -> tuple[int, bool]:
        """Launch the next kernel.

        Returns
        -------
        (int, bool)
            When the thread goes on, and whether the run has ended then.
        """
        program = self.program
        end_ns = self.stream.launch(program.kernels_ns[self.index], now)
        self.index += 1
        if self.index == len(program.kernels_ns):
            return end_ns, True
        if self.index in self._syncs:
            return end_ns + program.launch_ns, False
        return now + program.launch_ns, False

    def begin_again(self) -> None:
        """Note that a run has ended."""
        self.runs += 1
        self.index = 0

    def done(self) -> float:
        """Runs that it did, with the part of the one it is in that was launched."""
        if not self.index:
            return float(self.runs)
        return self.runs + self.program.done_ns[self.index - 1] / self.program.device_ns
