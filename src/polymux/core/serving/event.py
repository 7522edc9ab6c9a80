"""What happened to served models, requests and batches: everything that a driver tells the engine of requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polymux.core.ids import DeviceId
from polymux.core.serving.model import BatchId, ModelName, Request, RequestId, ServedModel, ServingDevice
from polymux.core.value import value


@dataclass(frozen=True, slots=True)
class ModelAdded:
    """A model is served from now on; also sent again when something about it changed (SLO, weight, surface)."""

    model: ServedModel


@dataclass(frozen=True, slots=True)
class ModelRemoved:
    """A model is served no longer: its waiting requests are rejected, its running batches end."""

    model: ModelName


@dataclass(frozen=True, slots=True)
class ServingDeviceAdded:
    """A device may run batches."""

    device: ServingDevice


@dataclass(frozen=True, slots=True)
class ServingDeviceLost:
    """A device no longer works; its running batches still get a `BatchEnded` each, as failed."""

    device: DeviceId
    reason: str


@dataclass(frozen=True, slots=True)
class InstanceReady:
    """A model can run on this number of units of a device: what a `PrepareInstance` asked for, or a driver offers."""

    model: ModelName
    device: DeviceId
    units: int


@dataclass(frozen=True, slots=True)
class InstanceFailed:
    """A `PrepareInstance` could not be carried out."""

    model: ModelName
    device: DeviceId
    units: int
    problem: str


@value
class RequestsArrived:
    """Requests came in, in the order of their arrival; of any models."""

    requests: Sequence[Request]


@dataclass(frozen=True, slots=True)
class RequestCancelled:
    """Nobody waits for the answer any more; no effect once a batch has taken the request."""

    model: ModelName
    request: RequestId


@value
class BatchEnded:
    """A batch ended; its units are free again."""

    batch: BatchId
    failed: bool = False


@value
class ServingTick:
    """The time that a `WakeAt` asked for has come."""


ServingEvent = (
    ModelAdded
    | ModelRemoved
    | ServingDeviceAdded
    | ServingDeviceLost
    | InstanceReady
    | InstanceFailed
    | RequestsArrived
    | RequestCancelled
    | BatchEnded
    | ServingTick
)
