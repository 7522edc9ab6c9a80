"""What a run of a job or a request does on a device: kernels one after another, boundaries between some of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from polymux.core.errors import InvalidRequest


@dataclass(frozen=True)
class Program:
    """The kernels of a run, in order.

    Parameters
    ----------
    kernels_ns : tuple of int, ns
        Time of each kernel, on a device where the speed is 1.
    boundaries : tuple of int
        Before which kernels the run can be left, ascending; its beginning and end are boundaries in any case.
    launch_ns : int, ns
        Time that the host takes to launch a kernel. It launches ahead of the device.
    syncs : tuple of int
        Before which kernels the host waits until all earlier ones have ended, ascending.
    """

    kernels_ns: tuple[int, ...]
    boundaries: tuple[int, ...] = ()
    launch_ns: int = 0
    syncs: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.kernels_ns or min(self.kernels_ns) < 1 or self.launch_ns < 0:
            raise InvalidRequest(
                f"program: {len(self.kernels_ns)} kernels, launched in {self.launch_ns} ns each; give at least one"
                " kernel, of 1 ns or more each, and no negative time"
            )
        for name in ("boundaries", "syncs"):
            places = getattr(self, name)
            if list(places) != sorted(set(places) & set(range(1, len(self.kernels_ns)))):
                raise InvalidRequest(
                    f"program: {name} are {places}; give different numbers from 1 to {len(self.kernels_ns) - 1},"
                    " ascending"
                )

    def scaled(self, speed: float) -> Program:
        """Return the same program on a device of this speed; launches take as long as ever."""
        if speed == 1.0:
            return self
        kernels = tuple(max(1, round(time_ns / speed)) for time_ns in self.kernels_ns)
        return Program(kernels, self.boundaries, self.launch_ns, self.syncs)

    @cached_property
    def ends_ns(self) -> tuple[int, ...]:
        """When each kernel ends after the beginning of the run, while nobody else uses the device."""
        ends: list[int] = []
        free_ns, issue_ns = 0, 0
        syncs = set(self.syncs)
        for index, time_ns in enumerate(self.kernels_ns):
            if index in syncs:
                issue_ns = free_ns
            issue_ns += self.launch_ns
            free_ns = max(free_ns, issue_ns) + time_ns
            ends.append(free_ns)
        return tuple(ends)

    @property
    def run_ns(self) -> int:
        """Time of a run, while nobody else uses the device."""
        return self.ends_ns[-1]

    @cached_property
    def boundary_ends_ns(self) -> tuple[int, ...]:
        """When the boundaries are after the beginning of the run, its end last."""
        return (*(self.ends_ns[index - 1] for index in self.boundaries), self.run_ns)

    @cached_property
    def longest_boundary_ns(self) -> int:
        """Longest time between two boundaries."""
        ends = self.boundary_ends_ns
        return max(end - begin for begin, end in zip((0, *ends), ends, strict=False))

    @cached_property
    def longest_kernel_ns(self) -> int:
        """Longest time from the end of a kernel to that of the next."""
        return max(end - begin for begin, end in zip((0, *self.ends_ns), self.ends_ns, strict=False))

    @cached_property
    def device_ns(self) -> int:
        """Time for which the device computes in a run."""
        return sum(self.kernels_ns)

    @cached_property
    def done_ns(self) -> tuple[int, ...]:
        """Sum of the times of the kernels up to each, itself included."""
        return tuple(accumulate(self.kernels_ns))
