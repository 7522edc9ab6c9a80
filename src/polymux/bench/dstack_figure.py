"""A figure of `polymux bench dstack`, and the workloads that its figures share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from polymux.core.ids import DeviceId
from polymux.core.serving.model import ModelName, ServedModel, ServingDevice
from polymux.perfmodel import tables
from polymux.perfmodel.flat_knee import FlatKneeSurface
from polymux.policy.serving.registry import load
from polymux.sim.serving import ClosedLoop, Load, Scenario, ServingOutcome, simulate

MS = 1_000_000
KIND = "v100"
SHARES = tuple(range(5, 101, 5))
BATCH = 16
_CLIENTS = 64
"""Of each model and device, without a pause: always a backlog."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure.

    Parameters
    ----------
    figure : str
        What it is.
    paper : str
        What the paper says; empty: nothing.
    expected : float, optional
        What follows from the paper's data, or was computed before.
    computed : float
    unit : str
    policy : str
        Which gave it.
    at_least : float, optional
        Its target, instead of `expected`.
    loose : bool
        Whether `expected` is of a simulation that was not described, and so no target.
    """

    figure: str
    paper: str
    expected: float | None
    computed: float
    unit: str = ""
    policy: str = "dstack"
    at_least: float | None = None
    loose: bool = False


@dataclass(frozen=True, slots=True)
class FlatModel:
    """A model of the paper: flat above its knee, and as long for each batch."""

    name: str
    knee: int
    runtime_ns: int
    slo_ns: int

    def served(self) -> ServedModel:
        """The same for the engine of requests."""
        surface = FlatKneeSurface(self.knee, ((BATCH, self.runtime_ns),))
        return ServedModel(ModelName(self.name), self.slo_ns, {KIND: surface})


def paper_model(name: str, *, knee: int | None = None, slo_ms: int | None = None) -> FlatModel:
    """Take a model from the paper's table; the ConvNets, whose SLO it does not tell, get 100 ms."""
    found = tables.model(KIND, name)
    slo_ns = slo_ms * MS if slo_ms is not None else (found.slo_ns or 100 * MS)
    return FlatModel(name, knee or found.knee_units, found.runtime_ns, slo_ns)


def relaxed(model: FlatModel, times: int) -> FlatModel:
    """Give a model an SLO so many times as long."""
    return replace(model, slo_ns=times * model.slo_ns)


def devices(count: int = 1) -> tuple[ServingDevice, ...]:
    """Make devices in shares of 5 %."""
    return tuple(ServingDevice(DeviceId(f"gpu:{index}"), 100, SHARES, KIND) for index in range(count))


def backlog(
    policy: str, models: Sequence[FlatModel | ServedModel], seconds: float, count: int = 1
) -> ServingOutcome:
    """Simulate models that always have requests; the first fifth is not counted."""
    served = [model.served() if isinstance(model, FlatModel) else model for model in models]
    loads = tuple(Load(model, ClosedLoop(_CLIENTS * count)) for model in served)
    return _simulate(policy, loads, seconds, count)


def open_loop(policy: str, loads: Sequence[Load], seconds: float) -> ServingOutcome:
    """Simulate models whose requests come whatever is answered; the first fifth is not counted."""
    return _simulate(policy, tuple(loads), seconds, 1)


def work(outcome: ServingOutcome, models: Sequence[FlatModel]) -> float:
    """Answers in percent of a device: each counts the unit time that it takes in a full batch at the knee."""
    total = 0.0
    for model in models:
        per_s = outcome.models[ModelName(model.name)].throughput_per_s
        total += per_s / BATCH * model.knee * model.runtime_ns / 1e9
    return total / len(outcome.devices)


def _simulate(policy: str, loads: tuple[Load, ...], seconds: float, count: int) -> ServingOutcome:
    duration_ns = round(seconds * 1e9)
    scenario = Scenario(
        devices(count), loads, duration_ns, seed=1, warmup_ns=duration_ns // 5, keep_spans=False
    )
    return simulate(load(policy), scenario)
