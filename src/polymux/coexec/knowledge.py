"""What a session knows: the server's streams, the units of each operation, their models; kept in the profile store."""

from __future__ import annotations

import json
import time
import warnings
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from polymux.client import Client
from polymux.coexec.company import Company
from polymux.coexec.operation import Operation, Way
from polymux.coexec.places import combinations, places_of
from polymux.coexec.units import Unit, units_of
from polymux.core.errors import ConfigError
from polymux.perfmodel.coexec.adapt import LEAD_S, Plan
from polymux.perfmodel.coexec.compute import ComputeModel
from polymux.perfmodel.coexec.features import Features
from polymux.perfmodel.coexec.planner import Planner
from polymux.perfmodel.coexec.problem import Objective, Problem
from polymux.perfmodel.coexec.unit import IDLE, Load, UnitModel
from polymux.perfmodel.energy import PowerModel
from polymux.profiles import CoexecUnit, ProfileStore, coexec_identity

TOGETHER_S = 200e-6
"""What a second unit costs besides, until that is measured: waking it, and noticing that it has ended."""
HANDOVER_S = 100e-6
"""What a further piece costs a unit: what all pieces read is read, or packed, again."""
HELPED_S = 0.02
"""From this length on, in s, other units may help those of the plan, and what else runs is worth a plan of its own."""
LEARNING = 0.003
"""Part of the time that refining models, and planning again after it, may take: then few runs wait for a plan."""
_EARLY = frozenset((1, 2, 4, 7, 11, 16, 24))
"""After so many runs of a shape its models are refined in any case."""
_MOST_WAITING = 256
_REMEMBERED = 256


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan, with the way that it splits, the units that may take part, and the models that it was made by."""

    plan: Plan
    way: Way
    units: tuple[Unit, ...]
    models: Mapping[str, UnitModel]
    slowdowns: Mapping[str, float] = field(default_factory=dict)
    """Of units by what the others of the plan take from them."""
    _expected: dict[tuple[str, int], float] = field(default_factory=dict, repr=False)

    def loads(self, others: Mapping[str, Load]) -> Mapping[str, Load]:
        """Return what slows the units: what else runs, and each other."""
        return slowed(others, self.slowdowns)

    def taking_part(self, objective: Objective) -> tuple[Unit, ...]:
        """Choose who takes part: units of the plan, and in a long run for time those that could help them."""
        if self.plan.predicted_s >= HELPED_S and not objective.energy:
            return self.units
        names = set(self.plan.units)
        return tuple(unit for unit in self.units if unit.id in names)

    def expected_s(self, unit: str, count: int) -> float:
        """Seconds that a piece of a unit is predicted to take; looked up for lengths that were asked for before."""
        found = self._expected.get((unit, count))
        if found is None:
            found = float(self.models[unit].compute.predict(self.plan.problem.features(count)))
            found *= self.slowdowns.get(unit, 1.0)
            self._expected[unit, count] = found
        return found


def slowed(loads: Mapping[str, Load], slowdowns: Mapping[str, float]) -> Mapping[str, Load]:
    """Add to what else runs that units slow each other."""
    if not slowdowns:
        return loads
    found = dict(loads)
    for unit, slowdown in slowdowns.items():
        load = found.get(unit, IDLE)
        found[unit] = Load(load.slowdown * slowdown, load.ready_s)
    return found


class Shelf:
    """Units of one operation and dtype, with their models; used by one thread at a time."""

    def __init__(
        self,
        dtype: np.dtype[Any],
        units: Sequence[Unit],
        powers: Mapping[str, PowerModel],
        memory: Mapping[str, int],
        groups: Sequence[frozenset[str]],
    ) -> None:
        self.dtype = dtype
        self.units = tuple(units)
        self._powers = powers
        self._memory = memory
        self._groups = groups
        self._computes = {unit.id: unit.stored.compute for unit in units if unit.stored is not None}
        self._planner: Planner | None = None
        self.company = Company(TOGETHER_S)
        self.taught: set[str] = set()
        self._sets: dict[tuple[str, ...], tuple[tuple[Unit, ...], ...]] = {}
        self._waiting: list[tuple[str, Features, float]] = []
        self._kept: OrderedDict[Hashable, Planned] = OrderedDict()
        self._refined_s = self._refining_s = 0.0
        self._models: OrderedDict[int, tuple[Plan, Mapping[str, UnitModel]]] = OrderedDict()

    def unknown(self, units: Sequence[Unit]) -> tuple[Unit, ...]:
        """Those of which there is no model yet."""
        return tuple(unit for unit in units if unit.id not in self._computes)

    def learn(self, unit: Unit, compute: ComputeModel) -> None:
        """Begin with a first model of a unit."""
        self._keep_refreshed()
        self._computes[unit.id] = compute
        self._planner = None
        self._kept.clear()
        self.taught.add(unit.id)

    def observe(self, unit: Unit, features: Features, seconds: float) -> None:
        """Take note of a piece that was computed; models are refined now and then."""
        self._waiting.append((unit.id, features, seconds))
        if len(self._waiting) > _MOST_WAITING:
            del self._waiting[0]

    def refine(self, runs: int) -> None:
        """Refine the models by what was observed: as often as takes 0.3 % of the time, and after few runs of a shape.

        Parameters
        ----------
        runs : int
            Of the shape that was computed last, in the session.
        """
        begun_s = monotonic()
        due = begun_s - self._refined_s > self._refining_s / LEARNING
        if not (self._waiting or self.company.has_news) or not (due or runs in _EARLY):
            return
        planner = self._made()
        for unit, features, seconds in self._waiting:
            planner.observe(unit, features, seconds)
            self.taught.add(unit)
        self._waiting.clear()
        self._kept.clear()
        self.company.has_news = False
        self._refined_s = monotonic()
        self._refining_s = self._refined_s - begun_s

    def plan(
        self,
        key: Hashable,
        ways: Sequence[Way],
        units: Sequence[Unit],
        objective: Objective,
        loads: Mapping[str, Load],
    ) -> Planned:
        """Return a plan; that of an equal call, `key`, under the same loads, if no model was refined since."""
        full = (key, *loads.items()) if loads else key
        planned = self._kept.get(full)
        if planned is None:
            begun_s = monotonic()
            planned = self._kept[full] = self._plan(ways, units, objective, loads)
            self._refining_s += monotonic() - begun_s
            if len(self._kept) > _REMEMBERED:
                self._kept.popitem(last=False)
        return planned

    def _plan(
        self, ways: Sequence[Way], units: Sequence[Unit], objective: Objective, loads: Mapping[str, Load]
    ) -> Planned:
        """Find the best plan among the sets of units that can work at the same time."""
        best: tuple[float, Plan, tuple[Unit, ...], Mapping[str, float]] | None = None
        problems = [way.problem for way in ways]
        tried: set[frozenset[str]] = set()
        for chosen in self._sets_of(units):
            tried.add(frozenset(unit.id for unit in chosen))
            for plan, slowdowns in self._plans(problems, chosen, objective, loads):
                cost = objective.time * plan.predicted_s + objective.energy * (plan.energy_j or 0.0)
                if best is None or cost < best[0]:
                    best = (cost, plan, chosen, slowdowns)
        assert best is not None, "there are units"
        _, plan, chosen, slowdowns = best
        for names in tried - {frozenset(plan.units)}:
            self.company.passed_over(names, plan.problem)
        way = next(way for way in ways if way.problem == plan.problem)
        return Planned(plan, way, chosen, self._models_of(plan), slowdowns)

    def _plans(
        self,
        problems: Sequence[Problem],
        chosen: Sequence[Unit],
        objective: Objective,
        loads: Mapping[str, Load],
    ) -> Iterator[tuple[Plan, Mapping[str, float]]]:
        """Make the plans of a set of units that may be the best one: of all, and of each alone if others slow it."""
        names = [unit.id for unit in chosen]
        planner = self._made()
        planner.together_s = self.company.together_s(names, problems[0])
        plan = planner.plan(problems, objective, loads=loads, only=names)
        slowdowns = self.company.slowdowns(plan.units, plan.problem)
        if not slowdowns:
            yield plan, {}
            return
        planner.together_s = self.company.together_s(plan.units, plan.problem)
        together = planner.plan([plan.problem], objective, loads=slowed(loads, slowdowns), only=plan.units)
        if len(together.units) == len(plan.units):
            yield together, slowdowns
        features = plan.problem.features(plan.problem.extent)
        for model in [its for its in planner.units if its.id in plan.units and len(plan.units) > 1]:
            alone = self.company.slowdowns([model.id], plan.problem)
            if model.compute.predict(features) * alone.get(model.id, 1.0) < together.predicted_s:
                yield planner.plan(problems, objective, loads=slowed(loads, alone), only=[model.id]), alone

    def _models_of(self, plan: Plan) -> Mapping[str, UnitModel]:
        """Return the units as they were when a plan was made: it is made again when they differ by more than 1 %."""
        known = self._models.get(id(plan))
        if known is None:
            known = (plan, {model.id: model for model in self._made().units})
            self._models[id(plan)] = known
            if len(self._models) > _REMEMBERED:
                self._models.popitem(last=False)
        return known[1]

    def refreshed(self) -> dict[str, ComputeModel]:
        """Return the present models of units that have learned something since the last call."""
        self._keep_refreshed()
        taught, self.taught = self.taught, set()
        return {name: self._computes[name] for name in taught}

    def _sets_of(self, units: Sequence[Unit]) -> tuple[tuple[Unit, ...], ...]:
        key = tuple(unit.id for unit in units)
        sets = self._sets.get(key)
        if sets is None:
            found: dict[tuple[str, ...], tuple[Unit, ...]] = {}
            for group in self._groups:
                chosen = tuple(unit for unit in units if unit.place.stream in group)
                if chosen:
                    found[tuple(unit.id for unit in chosen)] = chosen
            names = [frozenset(name) for name in found]
            sets = self._sets[key] = tuple(
                chosen for name, chosen in found.items() if not any(set(name) < other for other in names)
            )
        return sets

    def _made(self) -> Planner:
        if self._planner is None:
            self._planner = Planner(
                [
                    unit.model(self._computes[unit.id], self._powers, self._memory.get(unit.place.device, 0))
                    for unit in self.units
                    if unit.id in self._computes
                ],
                lead_s=LEAD_S,
                handover_s=HANDOVER_S,
            )
        return self._planner

    def _keep_refreshed(self) -> None:
        if self._planner is not None:
            self._computes.update({model.id: model.compute for model in self._planner.units})


@dataclass(frozen=True, slots=True)
class Learned:
    """What was learned of a unit, as the store keeps it."""

    shelf: Shelf
    unit: Unit
    record: CoexecUnit


class Knowledge:
    """Everything that is known of a server; used by one thread at a time.

    Parameters
    ----------
    client : Client
    store : Path or None
        The profile store; None: nothing is read or kept.
    powers : mapping of str to PowerModel
        Power of devices or streams, where energy counts.

    Notes
    -----
    A store that is not there yet, or cannot be written, does not matter: what is learned lasts for the session.
    """

    def __init__(self, client: Client, store: Path | None, powers: Mapping[str, PowerModel]) -> None:
        self._client = client
        self._store = store
        self._powers = powers
        self._shelves: dict[tuple[type[Operation], str], Shelf] = {}
        self.trouble: str | None = None
        """Why the store could not be read or written."""
        self.refresh()

    def refresh(self) -> None:
        """Ask the server again what there is, for instance when a device was lost; models are kept in the store."""
        status = self._client.status()
        self.places = places_of(status)
        identities = [coexec_identity(device) for device in status["devices"]]
        self._identities = {identity.key: identity for identity in identities}
        self._memory = {device["id"]: device["memory_nbytes"] for device in status["devices"]}
        self._groups = [frozenset(place.stream for place in group) for group in combinations(self.places)]
        self._stored = self._read()
        self._seen_s = {
            (device, record.key): record.measured_at
            for device, records in self._stored.items()
            for record in records
        }
        self._devices_of: dict[str, list[str]] = {}
        self._shelves.clear()

    def shelf(self, operation: Operation, dtype: np.dtype[Any]) -> Shelf:
        """Return the units of an operation."""
        key = (type(operation), dtype.str)
        shelf = self._shelves.get(key)
        if shelf is None:
            names = {kernel.name for kernel in operation.kernels}
            if not names <= self._devices_of.keys():
                self._devices_of = self._ask_kernels()
            units = units_of(operation, dtype, self.places, self._stored, self._devices_of)
            shelf = self._shelves[key] = Shelf(dtype, units, self._powers, self._memory, self._groups)
        return shelf

    def forget_kernels(self) -> None:
        """Ask again which devices have which kernels: one was registered."""
        self._devices_of = {}

    def learned(self) -> list[Learned]:
        """Take what was learned since the last time, to write it; see `restore`."""
        now_s = int(time.time())
        found = []
        for shelf in self._shelves.values():
            units = {unit.id: unit for unit in shelf.units}
            for name, compute in shelf.refreshed().items():
                unit = units[name]
                found.append(Learned(shelf, unit, unit.record(compute, shelf.dtype, now_s)))
        return found

    def write(self, learned: Sequence[Learned]) -> bool:
        """Write what was learned, from any thread, one at a time; False when it could not be.

        What was calibrated, or learned by another session, after this one had read it, is left as it is.
        """
        if self._store is None or not learned:
            return True
        try:
            self._store.parent.mkdir(parents=True, exist_ok=True)
            with ProfileStore(self._store, write=True) as store:
                for device in {its.unit.place.device_key for its in learned}:
                    store.put_device(self._identities[device])
                    there = {record.key: record.measured_at for record in store.coexec(device)}
                    for its in learned:
                        if its.unit.place.device_key != device:
                            continue
                        seen_s = self._seen_s.get((device, its.record.key), 0)
                        if there.get(its.record.key, 0) <= seen_s:
                            store.put_coexec(device, its.record)
                            self._seen_s[device, its.record.key] = its.record.measured_at
        except (ConfigError, OSError) as error:
            self._tell(error)
            return False
        return True

    def restore(self, learned: Sequence[Learned]) -> None:
        """Have it written the next time: it could not be."""
        for its in learned:
            its.shelf.taught.add(its.unit.id)

    def _tell(self, error: Exception) -> None:
        if self.trouble is None:
            warnings.warn(
                f"the profile store cannot be used, so what co-execution learns lasts for this session: {error}",
                RuntimeWarning,
                stacklevel=3,
            )
        self.trouble = str(error)

    def _read(self) -> dict[str, list[CoexecUnit]]:
        if self._store is None or not self._store.exists():
            return {}
        try:
            with ProfileStore(self._store) as store:
                return {key: store.coexec(key) for key in {place.device_key for place in self.places}}
        except ConfigError as error:
            self._tell(error)
            return {}

    def _ask_kernels(self) -> dict[str, list[str]]:
        reply, _ = self._client.request("kernels")
        return {kernel["name"]: kernel["devices"] for kernel in json.loads(reply["json"])}
