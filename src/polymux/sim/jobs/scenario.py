"""What is simulated: devices, jobs with their runs, requests for served models, and what goes wrong; as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from polymux.core.errors import InvalidRequest
from polymux.core.ids import DeviceId
from polymux.core.jobs.event import JobDeviceAdded, JobDeviceLost
from polymux.core.jobs.model import JobDevice, JobSpec
from polymux.sim.jobs.program import Program
from polymux.sim.serving.arrivals import Arrivals

_US = 1_000


@dataclass(frozen=True, slots=True)
class JobLoad:
    """A job that goes on run after run.

    Parameters
    ----------
    spec : JobSpec
        As the policy sees it; its speeds are the true ones.
    program : Program
        Of a run, on a device where its speed is 1.
    runs : int, optional
        After how many it is over; None: never.
    open_ns : int, ns
        When it comes.
    close_ns : int, optional, ns
        When it goes, whatever it has done; None: never.
    move_ns : int, optional, ns
        Time to move what it keeps between two devices, or from the host; None: by the bandwidth.
    deaf : bool
        Whether it never gives way by itself.
    """

    spec: JobSpec
    program: Program
    runs: int | None = None
    open_ns: int = 0
    close_ns: int | None = None
    move_ns: int | None = None
    deaf: bool = False


@dataclass(frozen=True, slots=True)
class RequestLoad:
    """Requests for a served model on one device.

    Parameters
    ----------
    name : str
    device : DeviceId
    program : Program
        Of a request, on that device.
    arrivals : Arrivals
    priority : int
    slo_ns : int, optional, ns
        Each is to be answered within this; None: as soon as possible.
    memory_nbytes : int
        Of its weights and activations, which stay in the device's memory.
    weight : int
        Of the application that sends them; 100 is normal.
    """

    name: str
    device: DeviceId
    program: Program
    arrivals: Arrivals
    priority: int = 0
    slo_ns: int | None = None
    memory_nbytes: int = 0
    weight: int = 100


@dataclass(frozen=True, slots=True)
class TaskTrace:
    """Times at which tasks have a device, decided elsewhere: what the policy for requests has planned.

    Parameters
    ----------
    name : str
    device : DeviceId
    spans_ns : tuple of (int, int)
        When each begins and how long it takes, in ns, by their beginning.
    priority : int
    slack_ns : int, ns
        How much later they may begin.
    """

    name: str
    device: DeviceId
    spans_ns: tuple[tuple[int, int], ...]
    priority: int = 0
    slack_ns: int = 0


@dataclass(frozen=True, slots=True)
class JobsScenario:
    """Everything about a simulation except the policy.

    Parameters
    ----------
    devices : tuple of JobDevice
        With their whole memory; what served models use is taken off.
    jobs : tuple of JobLoad
    requests : tuple of RequestLoad or TaskTrace
    duration_ns : int
    seed : int
    warmup_ns : int
        What happens before this is not counted.
    resume_ns : int
        From a grant until a job computes.
    start_ns : int
        From the permission for tasks until the first computes.
    launches_ahead : int
        Kernels that a job may have in flight where it gives way at kernels.
    events : tuple of (int, JobDeviceAdded or JobDeviceLost)
        What else happens at which time in ns.
    sharing : {"stream", "slices"}
        How those share a device that nobody keeps apart: as threads of one process, whose kernels go into one stream in
        the order of their launches, or as processes to which the driver gives equal slices of time.
    """

    devices: tuple[JobDevice, ...]
    jobs: tuple[JobLoad, ...]
    requests: tuple[RequestLoad | TaskTrace, ...] = ()
    duration_ns: int = 10_000_000_000
    seed: int = 0
    warmup_ns: int = 0
    resume_ns: int = 50 * _US
    start_ns: int = 20 * _US
    launches_ahead: int = 1
    events: tuple[tuple[int, JobDeviceAdded | JobDeviceLost], ...] = ()
    sharing: Literal["stream", "slices"] = "stream"

    def __post_init__(self) -> None:
        if not self.devices:
            raise InvalidRequest("scenario: no devices; give at least one")
        for what, names in (
            ("device", [device.id for device in self.devices]),
            ("job", [load.spec.id for load in self.jobs]),
            ("requests", [load.name for load in self.requests]),
        ):
            if len(set(names)) < len(names):
                twice = next(name for index, name in enumerate(names) if name in names[:index])
                raise InvalidRequest(f"scenario: {what} {twice!r} is given twice; name each differently")
        known = {device.id for device in self.devices}
        for load in self.requests:
            if load.device not in known:
                raise InvalidRequest(
                    f"scenario: requests for {load.name!r} go to {load.device}; there are {', '.join(known)}"
                )
        if not 0 <= self.warmup_ns < self.duration_ns or self.launches_ahead < 1 or self.seed < 0:
            raise InvalidRequest(
                f"scenario: warm-up {self.warmup_ns} ns, duration {self.duration_ns} ns, {self.launches_ahead} launches"
                f" in flight, seed {self.seed}; give a duration above the warm-up, 1 launch or more, no negative seed"
            )
