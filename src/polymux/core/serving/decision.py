"""What to do with requests: what a policy decides, and what the engine makes of it for its driver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polymux.core.decision import WakeAt
from polymux.core.ids import DeviceId
from polymux.core.serving.model import BatchId, ModelName, Request, RequestId
from polymux.core.value import value


@value
class Start:
    """Form a batch of the first `requests` waiting requests of a model and run it; made by policies.

    The engine turns it into a `Dispatch`.
    """

    model: ModelName
    device: DeviceId
    units: int
    requests: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Refuse:
    """Reject waiting requests; made by policies. The engine turns it into one `RejectRequest` for each."""

    model: ModelName
    requests: Sequence[RequestId]
    retry_at_ns: int | None = None
    reason: str = ""


@value
class Dispatch:
    """Run a batch on `units` units of a device now; the driver reports `BatchEnded` when it is done.

    Parameters
    ----------
    batch : BatchId
    model : ModelName
    requests : sequence of Request
        In the order of the batch.
    device : DeviceId
    units : int
    block : frozenset of int, optional
        Which units, where the device has `blocks`.
    expected_ns : int
        How long it should take; 0: not known.
    reason : str
    """

    batch: BatchId
    model: ModelName
    requests: Sequence[Request]
    device: DeviceId
    units: int
    block: frozenset[int] | None = None
    expected_ns: int = 0
    reason: str = ""


@value
class RejectRequest:
    """Refuse a request.

    Parameters
    ----------
    request : Request
    retry_at_ns : int, optional
        Monotonic time from which on its like could be met; None: not known.
    reason : str
        For the client.
    """

    request: Request
    retry_at_ns: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PrepareInstance:
    """Make a model able to run on this number of units, while it goes on running as before; answered by an event."""

    model: ModelName
    device: DeviceId
    units: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RetireInstance:
    """Let go of what makes a model able to run on this number of units; running batches end first."""

    model: ModelName
    device: DeviceId
    units: int
    reason: str = ""


PolicyDecision = Start | Refuse | PrepareInstance | RetireInstance | WakeAt
"""What a policy may decide."""
ServingDecision = Dispatch | RejectRequest | PrepareInstance | RetireInstance | WakeAt
"""What a driver carries out."""
