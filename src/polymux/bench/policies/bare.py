"""Batches without a front end, right before and after what is measured with one: the machine is not always as fast.

On a virtual machine the speed of a model can change from minute to minute, most of all where its threads wait for each
other. A profile tells how fast it was; this tells how fast it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import fmean, median, pstdev
from types import TracebackType
from typing import Self

from polymux.bench.policies.workload import Workload
from polymux.client import Client
from polymux.profiling.target import batches_on, registered, targets

_LEAST = 5
"""Batches of each kind."""

_OUTLIERS = 0.02
"""Part of the batches, the longest, that does not count for how much their times vary."""


@dataclass(frozen=True, slots=True)
class Machine:
    """How fast the machine is.

    Attributes
    ----------
    pace : mapping of (str, int) to float
        By model and units of its share: time of a batch of one over that in the profile.
    noise : float
        Coefficient of variation of these times, the mean of all.
    """

    pace: Mapping[tuple[str, int], float]
    noise: float

    @property
    def mean(self) -> float:
        """Mean of the paces."""
        return fmean(self.pace.values())

    def between(self, other: Machine) -> Machine:
        """What is half way to another time."""
        pace = {key: (value + other.pace[key]) / 2 for key, value in self.pace.items()}
        return Machine(pace, (self.noise + other.noise) / 2)


@dataclass(frozen=True, slots=True)
class Taken:
    """Times of batches of one kind.

    Attributes
    ----------
    mean_ns, median_ns : float
    variation : float
        Standard deviation over mean.
    """

    mean_ns: float
    median_ns: float
    variation: float


class BareBatches:
    """Runs batches of a workload's models through a connection of its own, as long as the ``with`` block lasts.

    Parameters
    ----------
    workload : Workload
    client : Client
    seconds : float
        That each kind of batch is repeated for at least.
    """

    def __init__(self, workload: Workload, client: Client, seconds: float) -> None:
        self._workload = workload
        self._client = client
        self._seconds = seconds
        self._stack = ExitStack()
        self._target = targets(client)[0]
        self._kernels: dict[str, str] = {}
        self._ready: dict[tuple[str, int, int], Callable[[], int]] = {}
        self.units = tuple(sorted(self._target.streams))

    def __enter__(self) -> Self:
        for name, model in self._workload.prepared.items():
            self._kernels[name] = self._stack.enter_context(
                registered(self._client, f"{model.record.name}:bare", model.path)
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def once(self, name: str, units: int, batch: int = 1) -> int:
        """Run a batch and return how long it took, in ns."""
        key = name, units, batch
        if key not in self._ready:
            model = self._workload.prepared[name]
            self._ready[key] = self._stack.enter_context(
                batches_on(self._target, units, self._kernels[name], model.inputs, model.outputs, batch)
            )
            self._ready[key]()  # loads the model
        return self._ready[key]()

    def repeat(self, name: str, units: int, batch: int = 1) -> Taken:
        """Repeat a batch."""
        self.once(name, units, batch)
        end_s = time.monotonic() + self._seconds
        taken: list[int] = []
        while len(taken) < _LEAST or time.monotonic() < end_s:
            taken.append(self.once(name, units, batch))
        usual = sorted(taken)[: max(_LEAST, round((1 - _OUTLIERS) * len(taken)))]
        return Taken(fmean(taken), median(taken), pstdev(usual) / fmean(usual))

    def machine(self) -> Machine:
        """Measure every model on every share."""
        taken = {
            (model.name, units): self.repeat(model.name, units)
            for model in self._workload.models
            for units in self.units
        }
        profiled = {model.name: model.surface for model in self._workload.models}
        return Machine(
            {key: its.median_ns / profiled[key[0]].latency_ns(key[1], 1) for key, its in taken.items()},
            fmean(its.variation for its in taken.values()),
        )
