"""Where a job is in its runs, while it has a device to itself."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from polymux.core.jobs.event import YieldReason
from polymux.core.jobs.model import PreemptionLevel
from polymux.sim.jobs.program import Program


class Training:
    """The progress of a job, computed when somebody asks.

    Parameters
    ----------
    program : Program
        Of a run, on a device where its speed is 1.
    launches_ahead : int
        Kernels in flight where it gives way at kernels.
    """

    def __init__(self, program: Program, launches_ahead: int) -> None:
        self._original = program
        self._program = program
        self._scaled = {1.0: program}
        self._ahead = launches_ahead
        self._runs = 0
        self._offset_ns = 0
        self._since_ns: int | None = None

    def begin(self, at_ns: int, speed: float) -> None:
        """Compute from a time on, on a device of this speed, from where it was."""
        if speed not in self._scaled:
            self._scaled[speed] = self._original.scaled(speed)
        program = self._scaled[speed]
        if program is not self._program:
            self._offset_ns = _same_place(self._program, self._offset_ns, program)
            self._program = program
        self._since_ns = at_ns

    def pause(self, now: int) -> None:
        """Compute no more."""
        self._advance(now)
        self._since_ns = None

    def is_between_runs(self, now: int) -> bool:
        """Whether it is at the end of a run, without activations."""
        self._advance(now)
        return self._offset_ns == 0

    def runs(self, now: int) -> float:
        """Runs that it did until now, with the part of the one it is in."""
        self._advance(now)
        return self._runs + self._offset_ns / self._program.run_ns

    @property
    def program(self) -> Program:
        """Its run on the device where it computes, or did last."""
        return self._program

    def end_ns(self, runs: int) -> int:
        """When it has done so many runs, if nobody takes the device away; it must be computing."""
        assert self._since_ns is not None
        return self._since_ns + (runs - self._runs) * self._program.run_ns - self._offset_ns

    def leave(self, level: PreemptionLevel, now: int) -> tuple[int, YieldReason]:
        """When it gives way, asked at a level now, and where that is."""
        self._advance(now)
        offset, program = self._offset_ns, self._program
        if offset == 0:
            return now, YieldReason.STEP
        end = program.run_ns
        if level is PreemptionLevel.BOUNDARY:
            end = program.boundary_ends_ns[bisect_left(program.boundary_ends_ns, offset)]
        elif level is PreemptionLevel.LAUNCHES:
            ends = program.ends_ns
            running = bisect_left(ends, offset)
            ahead = 0 if ends[running] == offset else self._ahead - 1
            end = ends[min(running + ahead, len(ends) - 1)]
        reason = YieldReason.STEP if end == program.run_ns else YieldReason.BOUNDARY
        if end == offset:
            return now, reason
        assert self._since_ns is not None
        return max(now, self._since_ns) + end - offset, reason

    def _advance(self, now: int) -> None:
        if self._since_ns is None or now <= self._since_ns:
            return
        total = self._offset_ns + now - self._since_ns
        self._runs += total // self._program.run_ns
        self._offset_ns = total % self._program.run_ns
        self._since_ns = now


def _same_place(old: Program, offset_ns: int, new: Program) -> int:
    """Find the same place of a run on a device of another speed: as far within the same kernel."""
    index = bisect_right(old.ends_ns, offset_ns)
    begin, end = (old.ends_ns[index - 1] if index else 0), old.ends_ns[index]
    part = (offset_ns - begin) / (end - begin)
    new_begin, new_end = (new.ends_ns[index - 1] if index else 0), new.ends_ns[index]
    return new_begin + round(part * (new_end - new_begin))
