"""Which shares models are made ready on, for policies that want each model on one share of a device."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

from polymux.core.ids import DeviceId
from polymux.core.serving.decision import PrepareInstance
from polymux.core.serving.event import (
    InstanceFailed,
    InstanceReady,
    ModelAdded,
    ModelRemoved,
    ServingDeviceAdded,
    ServingDeviceLost,
    ServingEvent,
)
from polymux.core.serving.model import ModelName, ServingDevice
from polymux.core.serving.view import ModelState, ServingView


class Instances:
    """Asks for the shares that models should run on, and names the nearest one until they are ready.

    Parameters
    ----------
    wanted : callable
        Gives the share, of those that the device offers, on which a model should run there.

    Attributes
    ----------
    moved : bool
        To be set when something else is wanted for models that no event is about.
    """

    def __init__(self, wanted: Callable[[ModelState, ServingDevice], int]) -> None:
        self.moved = False
        self._wanted = wanted
        self._asked: set[tuple[ModelName, DeviceId, int]] = set()
        self._failed: set[tuple[ModelName, DeviceId, int]] = set()

    def usable(self, state: ModelState, spec: ServingDevice) -> int | None:
        """Share on which a model can run now: the wanted one, or the nearest that is ready; None: there is none."""
        ready = state.ready.get(spec.id)
        if not ready:
            return None
        wanted = self._wanted(state, spec)
        if wanted in ready:
            return wanted
        return nearest(ready, wanted)

    def preparations(self, view: ServingView, event: ServingEvent) -> Iterator[PrepareInstance]:
        """Ask for what is wanted and not ready; each once, and for the next best after a failure.

        Only of the model that an event is about, if it is about one, and of all when something has moved.
        """
        for name in self._concerned(view, event):
            state = view.models.get(name)
            for device_id, device in view.devices.items() if state is not None else ():
                if device.lost is not None or state is None:
                    continue
                units = self._preparable(state, device.spec)
                if units is not None and (name, device_id, units) not in self._asked:
                    self._asked.add((name, device_id, units))
                    yield PrepareInstance(name, device_id, units, "the share on which it should run")

    def _concerned(self, view: ServingView, event: ServingEvent) -> Iterable[ModelName]:
        match event:
            case ModelAdded(model):
                return (model.name,)
            case InstanceReady(name):
                return (name,)
            case InstanceFailed(name, device_id, units):
                self._failed.add((name, device_id, units))
                return (name,)
            case ModelRemoved(name):
                self._forget(name=name)
                return ()
            case ServingDeviceLost(device_id):
                self._forget(device=device_id)
                return ()
            case ServingDeviceAdded():
                return view.models
            case _ if self.moved:
                self.moved = False
                return view.models
            case _:
                return ()

    def _forget(self, name: ModelName | None = None, device: DeviceId | None = None) -> None:
        """A model or a device is gone: what was asked for there may be asked for again."""
        for keys in (self._asked, self._failed):
            keys -= {key for key in keys if name == key[0] or device == key[1]}

    def _preparable(self, state: ModelState, spec: ServingDevice) -> int | None:
        wanted = self._wanted(state, spec)
        ready = state.ready.get(spec.id, set())
        if wanted in ready:  # nearly always, and asked for at every decision
            return None
        for share in sorted(spec.shares, key=lambda share: (abs(share - wanted), share)):
            if share in ready:
                return None
            if (state.model.name, spec.id, share) not in self._failed:
                return share
        return None


def nearest(shares: Collection[int], wanted: int) -> int:
    """Find the share that is nearest to a wanted one, the smaller of two."""
    return min(shares, key=lambda share: (abs(share - wanted), share))
