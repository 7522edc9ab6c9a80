"""What a job is, what a device offers it, and how a device can be taken away from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache
from typing import Literal, NewType

from polymux.core.errors import InvalidRequest
from polymux.core.ids import DeviceId

JobId = NewType("JobId", str)
"""Given by the driver, never used twice by it."""


class PreemptionLevel(IntEnum):
    """How a device is taken away from a job, cheapest first; none of them is 0.

    References
    ----------
    The levels of XSched (OSDI 2025) and the preemption of SwitchFlow (Middleware 2021), with what operating systems do.
    """

    STEP = 1
    """It gives way at the end of its run, when it has no activations."""
    BOUNDARY = 2
    """It gives way at its next boundary between subgraphs; its activations stay."""
    LAUNCHES = 3
    """As `BOUNDARY`, at any kernel: only a bounded number of launches is in flight."""
    IDLE = 4
    """The operating system lets it run only when nobody else wants the cores (SCHED_IDLE)."""
    STOP = 5
    """It is stopped at once; its memory stays (SIGSTOP)."""

    @property
    def by_system(self) -> bool:
        """Whether the operating system does it, without the job."""
        return self >= PreemptionLevel.IDLE


EVERYWHERE = (PreemptionLevel.STEP, PreemptionLevel.BOUNDARY)
"""What every device can do: it is the job that gives way."""


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A job as the scheduling sees it.

    Parameters
    ----------
    id : JobId
    name : str
        For people; need not be unique.
    priority : int
        Larger comes first, whatever the weights.
    weight : int
        Its part of the device time relative to jobs of the same priority, 1 to 10000; 100 is normal.
    memory_nbytes : int
        Weights and optimizer state: what it keeps between runs.
    peak_nbytes : int
        All that it needs while it runs, with activations; less than `memory_nbytes`: as much as that.
    levels : tuple of PreemptionLevel
        How it can be made to give way, ascending. `BOUNDARY` and `LAUNCHES` bring along what is cheaper than they are.
    devices : tuple of DeviceId
        Where it may run; empty: anywhere.
    boundary_ns : int, ns
        Longest time between two boundaries; 0: not known, until it is reported.
    launches_ns : int, ns
        Longest time until the launches in flight have ended, for `LAUNCHES`; 0: not known.
    speeds : mapping of str to float
        How fast it runs by kind of device, relative to each other; 1 where nothing is said.
    """

    id: JobId
    name: str
    priority: int = 0
    weight: int = 100
    memory_nbytes: int = 0
    peak_nbytes: int = 0
    levels: tuple[PreemptionLevel, ...] = EVERYWHERE
    devices: tuple[DeviceId, ...] = ()
    boundary_ns: int = 0
    launches_ns: int = 0
    speeds: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 1 <= self.weight <= 10_000:
            raise InvalidRequest(f"job {self.name!r}: weight is {self.weight}; give 1 to 10000")
        if not self.levels or list(self.levels) != sorted(set(self.levels)):
            given = ", ".join(level.name for level in self.levels) or "none"
            raise InvalidRequest(
                f"job {self.name!r}: levels are {given}; give at least one, different ones, cheapest first"
            )
        for name in ("memory_nbytes", "peak_nbytes", "boundary_ns", "launches_ns"):
            if getattr(self, name) < 0:
                raise InvalidRequest(f"job {self.name!r}: {name} is {getattr(self, name)}; give 0 or more")
        for kind, speed in self.speeds.items():
            if not 0 < speed < float("inf"):
                raise InvalidRequest(f"job {self.name!r}: speed on {kind!r} is {speed}; give more than 0")

    @property
    def needed_nbytes(self) -> int:
        """What it needs in a device's memory while it runs."""
        return max(self.memory_nbytes, self.peak_nbytes)

    def speed(self, device: JobDevice) -> float:
        """How fast it runs on a device, relative to other devices."""
        return self.speeds.get(device.kind, 1.0)

    def allows(self, device: DeviceId) -> bool:
        """Whether it may run on a device."""
        return not self.devices or device in self.devices

    def levels_on(self, device: JobDevice) -> tuple[PreemptionLevel, ...]:
        """How it can be made to give way there, cheapest first; may be empty."""
        return _shared(self.levels, device.levels)


@dataclass(frozen=True, slots=True)
class JobDevice:
    """A device that jobs hold in turn.

    Parameters
    ----------
    id : DeviceId
    units : int
        Compute units.
    memory_nbytes : int
        Of its memory, for jobs; 0: not known, whatever comes fits.
    kind : str
        Jobs are equally fast on devices of one kind.
    levels : tuple of PreemptionLevel
        What it can do beyond `EVERYWHERE`.
    memory : {"own", "host"}
        ``"host"``: it works in the machine's memory, with all others that do; nothing is moved between them.
    bandwidth_bytes_per_s : float
        At which weights come into its own memory and leave it; 0: not known, counted as no time.
    """

    id: DeviceId
    units: int = 1
    memory_nbytes: int = 0
    kind: str = ""
    levels: tuple[PreemptionLevel, ...] = EVERYWHERE
    memory: Literal["own", "host"] = "own"
    bandwidth_bytes_per_s: float = 0.0

    def __post_init__(self) -> None:
        if self.units < 1 or self.memory_nbytes < 0 or self.bandwidth_bytes_per_s < 0:
            raise InvalidRequest(
                f"device {self.id}: {self.units} units, {self.memory_nbytes} bytes of memory,"
                f" {self.bandwidth_bytes_per_s} bytes/s; give 1 or more units, and nothing below 0"
            )

    def transfer_ns(self, nbytes: int) -> int:
        """Time to move so much into its memory or out of it."""
        if self.memory == "host" or not self.bandwidth_bytes_per_s:
            return 0
        return round(nbytes * 1e9 / self.bandwidth_bytes_per_s)


@cache
def _shared(
    own: tuple[PreemptionLevel, ...], offered: tuple[PreemptionLevel, ...]
) -> tuple[PreemptionLevel, ...]:
    """Levels that both know, cheapest first."""
    levels = set(own)
    if levels & {PreemptionLevel.BOUNDARY, PreemptionLevel.LAUNCHES}:
        levels |= set(EVERYWHERE)
    return tuple(sorted(levels & {*offered, *EVERYWHERE}))
