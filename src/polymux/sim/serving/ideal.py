"""The ideal scheduler of D-STACK: kernels that can be stopped and go on at no cost, chosen anew every 100 us.

No device can do that, which makes it a bound to compare with: it is no policy of the engine of requests, whose batches
run to their end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from polymux.core.errors import InvalidRequest

SLOT_NS = 100_000


@dataclass(frozen=True, slots=True)
class IdealKernel:
    """One kernel of a model.

    Parameters
    ----------
    units : int
        That it can use.
    duration_ns : int
        On that many.
    """

    units: int
    duration_ns: int


@dataclass(frozen=True, slots=True)
class IdealModel:
    """A model as the sequence of its kernels, run again and again."""

    name: str
    kernels: tuple[IdealKernel, ...]


@dataclass(slots=True)
class IdealOutcome:
    """What the ideal scheduler got done.

    Parameters
    ----------
    seconds : float
    utilisation : float
        Part of all units that kernels used, 0 to 1.
    runs : dict of str to float
        How often each model ran through, in parts too.
    """

    seconds: float
    utilisation: float
    runs: dict[str, float] = field(default_factory=dict)


def layered_model(name: str, knee_units: int, runtime_ns: int, kernels: int, units: int = 100) -> IdealModel:
    """Make a model of kernels whose parallel work falls linearly, as in D-STACK's analytical model.

    Parameters
    ----------
    name : str
    knee_units : int
        Of the whole model; also the mean of what its kernels can use.
    runtime_ns : int
        Of the whole model on `knee_units`.
    kernels : int
    units : int
        Of the device, which no kernel exceeds.

    Notes
    -----
    With the paper's times, 40 for an operation and 10 for the start of a kernel, the knee lies at half the parallel
    work of the first kernel (equations 1 to 6, without data movement). Each kernel here runs on as many units as it
    has parallel work; on `knee_units` together they would take `runtime_ns`.

    References
    ----------
    D-STACK, equations 1 to 6, and its example.
    """
    start, operation = 10.0, 40.0
    widths = [2 * knee_units * (kernels - index - 0.5) / kernels for index in range(kernels)]
    at_knee = sum(start + operation * max(1.0, width / knee_units) for width in widths)
    scale = runtime_ns / at_knee
    made = []
    for width in widths:
        share = min(units, max(1, round(width)))
        made.append(IdealKernel(share, round(scale * (start + operation * max(1.0, width / share)))))
    return IdealModel(name, tuple(made))


def simulate_ideal(
    models: Sequence[IdealModel], duration_ns: int, units: int = 100, slot_ns: int = SLOT_NS
) -> IdealOutcome:
    """Run models with an endless backlog under the ideal scheduler.

    In each slot the next kernels of those models run whose units together are most, and at most those of the device;
    of equal sets the one whose models had least time so far. Within a slot a model goes on to its next kernel if that
    needs no more units.

    Raises
    ------
    InvalidRequest
        For no models, a model without kernels, or a kernel that does not fit on the device.
    """
    if not models or not all(model.kernels for model in models):
        raise InvalidRequest("ideal scheduler: give at least one model, each with at least one kernel")
    states = [_State(model) for model in models]
    for state in states:
        for kernel in state.model.kernels:
            if not 1 <= kernel.units <= units or kernel.duration_ns < 1:
                raise InvalidRequest(
                    f"ideal scheduler: model {state.model.name} has a kernel of {kernel.units} units for"
                    f" {kernel.duration_ns} ns; give 1 to {units} units and at least 1 ns"
                )
    used = slots = 0
    while slots * slot_ns < duration_ns:
        for state in _fullest(states, units):
            used += state.advance(slot_ns)
        slots += 1
    runs = {state.model.name: state.runs + state.at / len(state.model.kernels) for state in states}
    return IdealOutcome(slots * slot_ns / 1e9, used / (slots * slot_ns * units), runs)


class _State:
    def __init__(self, model: IdealModel) -> None:
        self.model = model
        self.runs = self.at = self.time_ns = 0
        self.left_ns = model.kernels[0].duration_ns

    @property
    def units(self) -> int:
        return self.model.kernels[self.at].units

    def advance(self, slot_ns: int) -> int:
        """Run for a slot on the units of the first kernel; return units times ns that were used."""
        granted, used, left = self.units, 0, slot_ns
        while left and self.units <= granted:
            ran = min(left, self.left_ns)
            used += ran * self.units
            left -= ran
            self.left_ns -= ran
            if not self.left_ns:
                self.at += 1
                if self.at == len(self.model.kernels):
                    self.at, self.runs = 0, self.runs + 1
                self.left_ns = self.model.kernels[self.at].duration_ns
        self.time_ns += slot_ns - left
        return used


def _fullest(states: list[_State], units: int) -> list[_State]:
    """Choose the set of models whose kernels use most units; of equal ones, with those first that had least time."""
    ranked = sorted(states, key=lambda state: state.time_ns)
    reachable = [1]  # bit n: the last models together can use n units
    mask = (1 << (units + 1)) - 1
    for state in reversed(ranked):
        reachable.append((reachable[-1] | reachable[-1] << state.units) & mask)
    left = reachable[-1].bit_length() - 1
    chosen = []
    for state, rest in zip(ranked, reversed(reachable[:-1]), strict=True):
        if left >= state.units and rest >> (left - state.units) & 1:
            chosen.append(state)
            left -= state.units
    return chosen
