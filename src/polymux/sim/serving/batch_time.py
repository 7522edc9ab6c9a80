"""How long a batch takes in a simulation: what the surface says, times what goes wrong."""

from __future__ import annotations

import math

import numpy as np

from polymux.core.errors import InvalidRequest
from polymux.core.ids import DeviceId
from polymux.core.serving.model import ModelName
from polymux.sim.serving.scenario import Scenario

_DRAWS = 1024


class BatchTimes:
    """The times of batches of a scenario; each model draws noise of its own."""

    def __init__(self, scenario: Scenario) -> None:
        self._kinds: dict[DeviceId, str] = {device.id: device.kind for device in scenario.devices}
        self._surfaces = {load.model.name: load.surfaces for load in scenario.loads}
        self._noise = scenario.noise
        self._rngs = {
            load.model.name: np.random.default_rng([scenario.seed, index, 1])
            for index, load in enumerate(scenario.loads)
        }
        self._draws: dict[ModelName, list[float]] = {}
        self._slowdowns = scenario.slowdowns

    def knows(self, model: ModelName, kind: str) -> bool:
        """Whether a model runs on a kind of device."""
        return kind in self._surfaces.get(model, {})

    def take_ns(self, model: ModelName, device: DeviceId, units: int, items: int, now: int) -> int:
        """Time of the batch that starts now.

        Raises
        ------
        InvalidRequest
            If nothing says how long the model takes on such a device.
        """
        surface = self._surfaces[model].get(self._kinds[device])
        if surface is None:
            raise InvalidRequest(
                f"model {model} has no surface for devices of kind {self._kinds[device]!r}; give one, or do not make"
                f" it ready on {device}"
            )
        time_ns = surface.latency_ns(units, items)
        if self._noise or self._slowdowns:
            time_ns = max(1, round(time_ns * self._factor(model, now)))
        return time_ns

    def _factor(self, model: ModelName, now: int) -> float:
        factor = self._draw(model) if self._noise else 1.0
        for slow in self._slowdowns:
            if slow.model == model and slow.start_ns <= now < slow.end_ns:
                factor *= slow.factor
        return factor

    def _draw(self, model: ModelName) -> float:
        draws = self._draws.get(model)
        if not draws:
            sigma = math.sqrt(math.log1p(self._noise**2))
            rng = self._rngs[model]
            draws = self._draws[model] = rng.lognormal(-sigma * sigma / 2, sigma, _DRAWS).tolist()
        return draws.pop()
