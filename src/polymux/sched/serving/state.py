"""What the engine of requests knows."""

from __future__ import annotations

from bisect import bisect_right

from polymux.core.errors import InvalidRequest
from polymux.core.ids import DeviceId
from polymux.core.serving.model import BatchId, ModelName
from polymux.core.serving.view import DeviceState, ModelState, RunningBatch, ServingView


class ServingState:
    """The view, and what policies need not see."""

    def __init__(self) -> None:
        self.view = ServingView()
        self.batches: dict[BatchId, RunningBatch] = {}
        self.batches_made = self.models_made = 0
        self.now = 0
        """The time, which never goes back."""

    def advance(self, now: int) -> int:
        """Set the time if it is later; return it."""
        if now > self.now:
            self.now = now
        return self.now

    def model(self, name: ModelName) -> ModelState:
        """Find a model.

        Raises
        ------
        InvalidRequest
            If it is not served.
        """
        try:
            return self.view.models[name]
        except KeyError:
            known = ", ".join(self.view.models) or "none"
            raise InvalidRequest(f"model {name!r} is not served; served are: {known}") from None

    def device(self, name: DeviceId) -> DeviceState:
        """Find a device.

        Raises
        ------
        InvalidRequest
            If there is none of that name.
        """
        try:
            return self.view.devices[name]
        except KeyError:
            known = ", ".join(self.view.devices) or "none"
            raise InvalidRequest(f"device {name!r} is unknown; there are: {known}") from None


def find_startable(device: DeviceState) -> tuple[int, ...]:
    """Shares of a device that a batch could be given now, ascending."""
    if device.lost is not None:
        return ()
    spec = device.spec
    if not spec.blocks:
        free = device.free
        shares = spec.shares
        return shares if free == spec.units else shares[: bisect_right(shares, free)]
    sizes = {len(block) for block in free_blocks(device)}
    return tuple(share for share in spec.shares if share in sizes)


def free_blocks(device: DeviceState) -> list[frozenset[int]]:
    """Blocks of a device none of whose units is used."""
    used: set[int] = set()
    for batch in device.running.values():
        used |= batch.block or frozenset()
    return [block for block in device.spec.blocks if not block & used]
