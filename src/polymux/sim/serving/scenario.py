"""What is simulated: a pool of devices, models with their arrivals, and what goes wrong; as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from polymux.core.errors import InvalidRequest
from polymux.core.ids import DeviceId
from polymux.core.serving.event import ServingDeviceAdded, ServingEvent
from polymux.core.serving.model import LatencySurface, ModelName, ServedModel, ServingDevice
from polymux.perfmodel.energy import PowerModel
from polymux.perfmodel.interference import NO_INTERFERENCE, Interference
from polymux.sim.serving.arrivals import SECOND_NS, Arrivals, Timestamps
from polymux.sim.serving.host import Host

MOST_REQUESTS = 20_000_000
"""That are simulated: while their arrivals are put in order, each takes about 50 bytes, so these take 1 GB."""


@dataclass(frozen=True, slots=True)
class Load:
    """A model and the requests for it.

    Parameters
    ----------
    model : ServedModel
        As the policy sees it.
    arrivals : Arrivals
    items : int
        Of each request.
    truth : mapping of str to LatencySurface, optional
        How long batches really take, by kind of device; None: as the model's surfaces say.
    ready : mapping of DeviceId to tuple of int, optional
        The shares on which it can be started from the beginning; None: all of all devices of whose kind there is a
        surface.
    """

    model: ServedModel
    arrivals: Arrivals
    items: int = 1
    truth: Mapping[str, LatencySurface] | None = None
    ready: Mapping[DeviceId, tuple[int, ...]] | None = None

    def __post_init__(self) -> None:
        if self.items < 1:
            raise InvalidRequest(f"model {self.model.name}: items is {self.items}; give 1 or more")

    @property
    def surfaces(self) -> Mapping[str, LatencySurface]:
        """How long batches really take, by kind of device."""
        return self.model.surfaces if self.truth is None else self.truth


@dataclass(frozen=True, slots=True)
class Slowdown:
    """From `start_ns` to `end_ns`, batches of a model that start then take `factor` times as long."""

    model: ModelName
    start_ns: int
    end_ns: int
    factor: float

    def __post_init__(self) -> None:
        if not self.factor > 0 or self.end_ns <= self.start_ns:
            raise InvalidRequest(
                f"slow-down of {self.model}: factor {self.factor} from {self.start_ns} to {self.end_ns} ns; give a"
                " factor above 0 and an end after the start"
            )


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything about a simulation except the policy.

    Parameters
    ----------
    devices : tuple of ServingDevice
    loads : tuple of Load
        Of different models.
    duration_ns : int
        Requests arrive from 0 to this.
    seed : int
        0 or more; each model has random numbers of its own, so that another model more or less, or another policy,
        does not change when its requests arrive.
    warmup_ns : int
        What arrives before this is not counted, nor is what devices do before.
    noise : float
        Coefficient of variation of the times of batches (log-normal, mean 1).
    slowdowns : tuple of Slowdown
    events : tuple of (int, ServingEvent)
        What else happens at which time in ns: a device lost, or come back; a model changed, or removed.
    prepare_ns : int
        Time that a `PrepareInstance` takes.
    drain_ns : int, optional
        How long what waits at the end may go on; None: twice the longest SLO. Running batches end in any case.
    power : mapping of str to PowerModel
        By kind of device; without, no energy is told.
    interference : Interference
        How much models on one device slow each other down; policies do not know of it.
    keep_spans : bool
        Whether the outcome lists every batch.
    host : Host, optional
        The front end and its clients, where they compute on the cores of a device; None: they take no time.
    """

    devices: tuple[ServingDevice, ...]
    loads: tuple[Load, ...]
    duration_ns: int
    seed: int = 0
    warmup_ns: int = 0
    noise: float = 0.0
    slowdowns: tuple[Slowdown, ...] = ()
    events: tuple[tuple[int, ServingEvent], ...] = ()
    prepare_ns: int = 0
    drain_ns: int | None = None
    power: Mapping[str, PowerModel] = field(default_factory=dict)
    interference: Interference = NO_INTERFERENCE
    keep_spans: bool = True
    host: Host | None = None

    def __post_init__(self) -> None:
        if not self.devices or not self.loads:
            raise InvalidRequest(
                f"scenario: {len(self.devices)} devices, {len(self.loads)} models; give at least one of each"
            )
        for what, names in (
            ("device", [device.id for device in self.devices]),
            ("model", [load.model.name for load in self.loads]),
        ):
            if len(set(names)) < len(names):
                twice = next(name for i, name in enumerate(names) if name in names[:i])
                raise InvalidRequest(f"scenario: {what} {twice!r} is given twice; name each differently")
        if not 0 <= self.warmup_ns < self.duration_ns:
            raise InvalidRequest(
                f"scenario: warm-up {self.warmup_ns} ns, duration {self.duration_ns} ns; give a duration above 0 and a"
                " warm-up below it"
            )
        self._check_requests()
        devices = {device.id for device in self.devices}
        for at, event in self.events:
            if isinstance(event, ServingDeviceAdded) and event.device.id not in devices:
                raise InvalidRequest(
                    f"scenario: at {at} ns device {event.device.id} is added; only those of the scenario can come back"
                )
        self._check_host()
        for name in ("seed", "noise", "prepare_ns"):
            if getattr(self, name) < 0:
                raise InvalidRequest(f"scenario: {name} is {getattr(self, name)}; give 0 or more")

    def _check_host(self) -> None:
        if self.host is None:
            return
        if self.host.device not in {device.id for device in self.devices}:
            raise InvalidRequest(
                f"scenario: the host is on device {self.host.device}, which is not one of it; name one of its devices"
            )
        for load in self.loads:
            if load.model.name not in self.host.work:
                raise InvalidRequest(f"scenario: the host has no work for model {load.model.name}; give it")

    def _check_requests(self) -> None:
        expected = 0.0
        for load in self.loads:
            requests = load.arrivals.mean_rate_per_s * self.duration_ns / SECOND_NS
            if isinstance(load.arrivals, Timestamps):
                requests = min(requests, len(load.arrivals.times))
            expected += requests
        if expected > MOST_REQUESTS:
            raise InvalidRequest(f"scenario: about {expected:.3g} requests {too_many(self.duration_ns)}")


def too_many(duration_ns: int) -> str:
    """Say what to do about more requests than are simulated, behind their number."""
    return (
        f"in {duration_ns / SECOND_NS:g} s; at most {MOST_REQUESTS:,} are simulated: give a shorter duration"
        " (duration_s, --duration), or fewer requests a second"
    )
