"""What the engine of requests knows, as a policy sees it.

Unlike the frozen snapshot of queues these are the engine's own objects: copying them for each of a hundred thousand
requests per second would cost more than deciding. A policy reads them and changes nothing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from operator import attrgetter

from polymux.core.ids import DeviceId
from polymux.core.serving.model import BatchId, ModelName, Request, ServedModel, ServingDevice


@dataclass(slots=True)
class RunningBatch:
    """A batch that a device runs.

    Parameters
    ----------
    id : BatchId
    model : ModelName
    device : DeviceId
    requests : int
    items : int
    units : int
    block : frozenset of int or None
    start_ns : int
    expected_ns : int
        How long it should take in all; 0: not known.
    deadline_ns : int
        The earliest of its requests.
    """

    id: BatchId
    model: ModelName
    device: DeviceId
    requests: int
    items: int
    units: int
    block: frozenset[int] | None
    start_ns: int
    expected_ns: int
    deadline_ns: int

    @property
    def expected_end_ns(self) -> int:
        """When it should end."""
        return self.start_ns + self.expected_ns


@dataclass(slots=True)
class DeviceState:
    """A device and what runs there.

    Parameters
    ----------
    spec : ServingDevice
    free : int
        Units that no batch uses.
    startable : tuple of int
        Shares that a batch could be given now, ascending.
    running : dict of BatchId to RunningBatch
    lost : str, optional
        Why it no longer works.
    """

    spec: ServingDevice
    free: int
    startable: tuple[int, ...]
    running: dict[BatchId, RunningBatch] = field(default_factory=dict)
    lost: str | None = None


@dataclass(slots=True)
class ModelState:
    """A model, its waiting requests, and what it has had so far.

    Parameters
    ----------
    model : ServedModel
    number : int
        Models that were added later have larger ones.
    waiting : deque of Request
        By deadline, then by arrival.
    waiting_items : int
    running : dict of BatchId to RunningBatch
    ready : dict of DeviceId to set of int
        The shares on which it can be started now.
    device_ns : int
        Time that its batches ran, summed over batches (the paper's GPU time).
    unit_ns : int
        The same times the units of each.
    arrived, admitted, refused, answered, late, failed : int
        Requests. `late` were answered after their deadline; `refused` include those taken out of the queue.
    rate_per_s : float
        Arrivals per second lately, measured over half seconds; 0 until the first has passed.
    drift : float
        Measured over expected time of its batches lately; 1 when they take what the surface says.
    """

    model: ServedModel
    number: int = 0
    waiting: deque[Request] = field(default_factory=deque)
    waiting_items: int = 0
    running: dict[BatchId, RunningBatch] = field(default_factory=dict)
    ready: dict[DeviceId, set[int]] = field(default_factory=dict)
    device_ns: int = 0
    unit_ns: int = 0
    arrived: int = 0
    admitted: int = 0
    refused: int = 0
    answered: int = 0
    late: int = 0
    failed: int = 0
    rate_per_s: float = 0.0
    drift: float = 1.0
    window_start_ns: int = -(1 << 62)
    """Since when arrivals are counted for the rate; long ago: none came."""
    window_requests: int = 0

    def expected_ns(self, device: ServingDevice, units: int, items: int) -> int:
        """How long a batch should take by the surface and the drift, in ns; 0 where the model is not profiled."""
        surface = self.model.surfaces.get(device.kind)
        return 0 if surface is None else int(surface.latency_ns(units, items) * self.drift)

    def max_batch(self, device: ServingDevice) -> int:
        """Most items of one batch on a kind of device."""
        surface = self.model.surfaces.get(device.kind)
        return self.model.max_batch if surface is None else surface.max_batch


@dataclass(slots=True)
class ServingView:
    """Everything: models and devices by their names, in the order in which they were added.

    Parameters
    ----------
    models : dict of ModelName to ModelState
    devices : dict of DeviceId to DeviceState
    waiting : dict of ModelName to ModelState
        Those models that have waiting requests, in the order in which they came to have some.
    """

    models: dict[ModelName, ModelState] = field(default_factory=dict)
    devices: dict[DeviceId, DeviceState] = field(default_factory=dict)
    waiting: dict[ModelName, ModelState] = field(default_factory=dict)

    def waiting_in_order(self) -> list[ModelState]:
        """List the models that have waiting requests in the order in which models were added."""
        return sorted(self.waiting.values(), key=_number)

    @property
    def can_start(self) -> bool:
        """Whether some device could take a batch now."""
        for device in self.devices.values():  # noqa: SIM110 - asked for each request: `any` takes twice as long
            if device.startable:
                return True
        return False


_number = attrgetter("number")
