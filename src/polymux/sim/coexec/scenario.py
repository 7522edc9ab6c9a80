"""What is simulated: an operation, the units, what turns out other than predicted, and what goes wrong; as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from polymux.core.errors import InvalidRequest
from polymux.perfmodel.coexec.problem import Objective, Problem
from polymux.perfmodel.coexec.unit import UnitModel


@dataclass(frozen=True, slots=True)
class SpeedChange:
    """A device becomes slower, or as fast as before.

    Parameters
    ----------
    device : str
    at_s : float, s
    slowdown : float
        How many times longer computing takes from then on; 1: as predicted.

    Raises
    ------
    InvalidRequest
        If the time is negative or the slowdown not positive.
    """

    device: str
    at_s: float
    slowdown: float

    def __post_init__(self) -> None:
        if not (0 <= self.at_s < float("inf") and 0 < self.slowdown < float("inf")):
            raise InvalidRequest(
                f"device {self.device}: {self.slowdown} times slower from {self.at_s} s on; give a positive"
                " slowdown, and 0 s or more"
            )


@dataclass(frozen=True, slots=True)
class Failure:
    """A unit fails: what it is at is lost.

    Parameters
    ----------
    unit : str
    at_s : float, s

    Raises
    ------
    InvalidRequest
        If the time is negative.
    """

    unit: str
    at_s: float

    def __post_init__(self) -> None:
        if not 0 <= self.at_s < float("inf"):
            raise InvalidRequest(f"unit {self.unit} fails at {self.at_s} s; give 0 or more")


@dataclass(frozen=True, slots=True)
class CoexecScenario:
    """An operation on several units.

    Parameters
    ----------
    problems : tuple of Problem
        The operation, split along each of the axes that are possible.
    units : tuple of UnitModel
        As they are predicted.
    objective : Objective
    truth : mapping of str to float
        How many times longer than predicted a unit really takes; 1 where it is not named.
    changes : tuple of SpeedChange
    failures : tuple of Failure
    steal : bool
        Whether units that are early take over from others.

    Raises
    ------
    InvalidRequest
        If a device or unit is not there, or a factor is not positive.
    """

    problems: tuple[Problem, ...]
    units: tuple[UnitModel, ...]
    objective: Objective = field(default_factory=Objective)
    truth: Mapping[str, float] = field(default_factory=dict)
    changes: tuple[SpeedChange, ...] = ()
    failures: tuple[Failure, ...] = ()
    steal: bool = True

    def __post_init__(self) -> None:
        units, devices = {unit.id for unit in self.units}, {unit.device for unit in self.units}
        unknown = {failure.unit for failure in self.failures} | set(self.truth)
        if not self.problems or not units:
            raise InvalidRequest("co-execution: give at least one problem and one unit")
        if unknown - units or {change.device for change in self.changes} - devices:
            raise InvalidRequest(
                f"co-execution: units {sorted(unknown)}, devices {sorted({c.device for c in self.changes})};"
                f" there are units {sorted(units)} of devices {sorted(devices)}"
            )
        if not all(0 < factor < float("inf") for factor in self.truth.values()):
            raise InvalidRequest(f"co-execution: factors {dict(self.truth)}; give positive ones")
