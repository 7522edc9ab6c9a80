"""The memory of devices: a model's weights are there once, however many shares it can be started on."""

from __future__ import annotations

from collections.abc import Sequence

from polymux.core.errors import InvalidRequest
from polymux.core.ids import DeviceId
from polymux.core.serving.model import ModelName
from polymux.sim.serving.scenario import Scenario


class DeviceMemory:
    """Which models are on which device, and whether another one fits."""

    def __init__(self, scenario: Scenario) -> None:
        self._needs = {load.model.name: load.model.memory_nbytes for load in scenario.loads}
        self._free: dict[DeviceId, float] = {
            device.id: device.memory_nbytes or float("inf") for device in scenario.devices
        }
        self._instances: dict[tuple[DeviceId, ModelName], set[int]] = {}

    def take(self, model: ModelName, device: DeviceId, units: int) -> str | None:
        """Make room for a model on a device; return the problem when there is too little."""
        instances = self._instances.get((device, model))
        if instances:
            instances.add(units)
            return None
        needed, free = self._needs.get(model, 0), self._free.get(device, float("inf"))
        if needed > free:
            return f"its weights take {needed} bytes, {device} has {free:.0f} bytes free"
        self._free[device] = free - needed
        self._instances[device, model] = {units}
        return None

    def take_first(self, model: ModelName, device: DeviceId, shares: Sequence[int]) -> None:
        """Make room for what is there from the beginning.

        Raises
        ------
        InvalidRequest
            If there is too little.
        """
        for units in shares:
            problem = self.take(model, device, units)
            if problem is not None:
                raise InvalidRequest(
                    f"model {model}: {problem}; serve fewer models on it, use more devices, or give it more memory"
                )

    def give_back(self, model: ModelName, device: DeviceId, units: int) -> None:
        """Let go of an instance, and of the weights with the last one."""
        instances = self._instances.get((device, model), set())
        if units in instances:
            instances.discard(units)
            if not instances:
                self._free[device] += self._needs.get(model, 0)

    def forget(self, device: DeviceId) -> None:
        """Note that a device was lost with everything in it."""
        for held_by, model in self._instances:
            if held_by == device and self._instances[held_by, model]:
                self._free[device] += self._needs.get(model, 0)
                self._instances[held_by, model] = set()
