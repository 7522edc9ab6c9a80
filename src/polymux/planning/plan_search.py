"""Searches the cheapest placement that a simulation finds well."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil

from polymux.core.errors import InvalidRequest
from polymux.core.serving.model import ModelName
from polymux.perfmodel.capacity.bound import bound
from polymux.perfmodel.capacity.demand import Demand, DeviceKind
from polymux.perfmodel.capacity.pack import pack
from polymux.perfmodel.capacity.placement import PlacedDevice, Placement, Unplaced
from polymux.perfmodel.capacity.spread import undivided
from polymux.planning.plan_check import Progress, is_met, pools_of, serving_devices, simulate_pools
from polymux.planning.workload import Workload
from polymux.sim.serving.cluster import merge
from polymux.sim.serving.outcome import ServingOutcome
from polymux.sim.serving.scenario import Scenario

_CAUTIONS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
_CAUTION_OF_LARGE = 1.0
_CAUTION_UNCHECKED = 1.0
_ALIKE = 2
_FEW_DEVICES = 8
_LARGE = 200
_GROWTH = 1.1
_MOST_GROWTHS = 40
_LEAST_ATTAINED = 0.1
_SEEDS_APART = 7_919


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What a plan has to keep.

    Parameters
    ----------
    policy : str
        That schedules each device.
    attainment : float
        Part of each model's requests to be answered on time.
    limits : mapping of str to int
        How many devices of a kind there are; as many as are needed of kinds that are not named.
    check : bool
        Whether to simulate; without, the plan is only arithmetic.
    rounds : int
        How many placements to simulate at most.
    """

    policy: str = "spacetime"
    attainment: float = 0.99
    limits: Mapping[str, int] = field(default_factory=dict)
    check: bool = True
    rounds: int = 24

    def __post_init__(self) -> None:
        if not 0 < self.attainment < 1:
            raise InvalidRequest(
                f"attainment is {self.attainment}; give a part of the requests, above 0 and below 1, such as 0.99"
            )


@dataclass(slots=True)
class Candidate:
    """A placement, and what simulations have said of its devices so far.

    Parameters
    ----------
    caution : float
        As for `pack`.
    headroom : mapping of str to float
        As for `pack`.
    devices : list of PlacedDevice
    unplaced : list of Unplaced
    outcomes : dict of int to ServingOutcome
        By index of the device.
    run : int
        Which arrivals it is simulated with: 0 until all devices were well with those of the workload.
    outcome : ServingOutcome, optional
        Of the whole.
    missed : list of str
        Models that are late.
    """

    caution: float
    headroom: Mapping[str, float] = field(default_factory=dict)
    devices: list[PlacedDevice] = field(default_factory=list)
    unplaced: list[Unplaced] = field(default_factory=list)
    outcomes: dict[int, ServingOutcome] = field(default_factory=dict)
    run: int = 0
    outcome: ServingOutcome | None = None
    missed: list[str] = field(default_factory=list)


class PlanSearch:
    """Best-first: the cheapest placement is simulated next.

    The first placements are packed with more and less caution, at most two of the same cost (one in all when there are
    more than 200 models); where that takes up to eight devices, there are also cheaper ones without lanes, on which the
    policy is free to choose shares. Where the simulation finds models late, those devices are taken apart and their
    models are packed again with more headroom for the late ones; that is one more placement, of which only the new
    devices have to be simulated. A placement on which nothing is late is simulated once more with other arrivals, so
    that it is not one that was lucky.
    """

    def __init__(
        self,
        workload: Workload,
        options: PlanOptions,
        kinds: Sequence[DeviceKind],
        demands: Sequence[Demand],
        progress: Progress | None,
    ) -> None:
        self._workload, self._options, self._kinds = workload, options, kinds
        self._demands = {demand.model: demand for demand in demands}
        self._costs = {kind.name: kind.cost for kind in kinds}
        self._progress = progress
        self._heap: list[tuple[tuple[float, float, float], int, Candidate]] = []
        self._seen: list[list[PlacedDevice]] = []
        self.simulated = 0
        """Devices that were simulated, each run counted."""

    def run(self) -> Candidate:
        """Search; the last one that was tried when none is well, and the first one when it leaves something out."""
        cautions = _CAUTIONS if len(self._demands) <= _LARGE else (_CAUTION_OF_LARGE,)
        if not self._options.check:
            cautions = (_CAUTION_UNCHECKED,)
        of_cost: dict[float, int] = {}
        for caution in sorted(cautions, reverse=True):
            candidate = Candidate(caution)
            self._pack(candidate, list(self._demands.values()))
            cost = self._cost(candidate)
            of_cost[cost] = of_cost.get(cost, 0) + 1
            if of_cost[cost] <= _ALIKE:
                self._push(candidate)
        best = self._heap[0][2]
        if self._options.check and not best.unplaced:
            self._push_undivided(best)
        if not self._options.check or not best.devices or best.unplaced:
            return best
        for _ in range(self._options.rounds):
            if not self._heap:
                break
            best = heapq.heappop(self._heap)[2]
            late = self._simulate(best)
            if not late and best.run:
                return best
            if late and self._is_undivided(best) and self._heap:
                continue
            if late:
                best = self._repair(best, late)
            else:
                best.run, best.outcomes = best.run + 1, {}
            self._push(best)
        if not best.run:
            best.run, best.outcomes = 1, {}
        self._simulate(best)
        return best

    def _push(self, candidate: Candidate) -> None:
        if candidate.run == 0 and candidate.devices in self._seen:
            return
        self._seen.append(candidate.devices)
        left = sum(max(missing.rate_per_s, 1e-9) for missing in candidate.unplaced)
        key = (left, self._cost(candidate), -candidate.caution)
        heapq.heappush(self._heap, (key, len(self._seen), candidate))

    def _cost(self, candidate: Candidate) -> float:
        return sum(self._costs[device.kind] for device in candidate.devices)

    def _push_undivided(self, packed: Candidate) -> None:
        """Add placements without lanes that cost less than the packed ones, when those are few devices."""
        if len(packed.devices) > _FEW_DEVICES or len(self._demands) > _LARGE:
            return
        demands, cost = list(self._demands.values()), self._cost(packed)
        least = bound(demands, self._kinds, self._options.attainment).least
        for kind in self._kinds:
            most = _FEW_DEVICES if kind.limit is None else min(kind.limit, _FEW_DEVICES)
            for count in range(max(1, ceil(least / kind.cost)), most + 1):
                if count * kind.cost >= cost:
                    break
                try:
                    self._push(Candidate(0.0, devices=undivided(demands, kind, count)))
                except InvalidRequest:  # a model does not run on this kind, or the memory is too small
                    continue

    @staticmethod
    def _is_undivided(candidate: Candidate) -> bool:
        return all(device.free for device in candidate.devices)

    def _pack(self, candidate: Candidate, demands: list[Demand]) -> None:
        used = Placement(tuple(candidate.devices)).counts
        kinds = [
            kind if kind.limit is None else replace(kind, limit=kind.limit - used.get(kind.name, 0))
            for kind in self._kinds
        ]
        headroom, caution = candidate.headroom, candidate.caution
        placement = pack(demands, kinds, caution=caution, headroom=headroom, progress=self._packed)
        candidate.devices += placement.devices
        candidate.unplaced += placement.unplaced

    def _packed(self, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress("placing models", done, total)

    def _simulate(self, candidate: Candidate) -> dict[int, list[str]]:
        """Simulate what has not been; return the models that are late, by device."""
        scenario = self._scenario(candidate)
        pools = pools_of(candidate.devices, [device.id for device in scenario.devices])
        chosen = set(range(len(candidate.devices))) - candidate.outcomes.keys()
        self.simulated += len(chosen)
        candidate.outcomes |= simulate_pools(self._options.policy, scenario, pools, chosen, self._progress)
        candidate.outcome = merge(scenario, candidate.outcomes.values())
        return self._late(candidate)

    def _scenario(self, candidate: Candidate) -> Scenario:
        scenario = self._workload.scenario(keep_spans=False)
        placed = {model for device in candidate.devices for model in device.models}
        return replace(
            scenario,
            devices=serving_devices(candidate.devices, self._kinds),
            loads=tuple(load for load in scenario.loads if load.model.name in placed),
            seed=scenario.seed + _SEEDS_APART * candidate.run,
            slowdowns=(),
            events=(),
        )

    def _late(self, candidate: Candidate) -> dict[int, list[str]]:
        """Models that are late, by device; also those that are late only in sum."""
        attainment = self._options.attainment
        outcomes, whole = candidate.outcomes, candidate.outcome
        late = {
            index: [str(name) for name, model in outcome.models.items() if not is_met(model, attainment)]
            for index, outcome in outcomes.items()
        }
        if whole is not None:
            candidate.missed = [str(n) for n, model in whole.models.items() if not is_met(model, attainment)]
        for name in set(candidate.missed) - {name for names in late.values() for name in names}:
            for index, outcome in outcomes.items():
                model = outcome.models.get(ModelName(name))
                if model is not None and model.attainment < attainment:
                    late[index].append(name)
        return {index: names for index, names in late.items() if names}

    def _repair(self, candidate: Candidate, late: Mapping[int, Sequence[str]]) -> Candidate:
        """Take devices apart and place their models again, with as much headroom as makes a difference."""
        rates: dict[str, float] = {}
        for index in sorted(late):
            for _, replica in candidate.devices[index].replicas():
                rates[replica.model] = rates.get(replica.model, 0.0) + replica.rate_per_s
        demands = [replace(self._demands[model], rate_per_s=rate) for model, rate in rates.items()]
        growths = self._growths(candidate, late)
        kept = [index for index in range(len(candidate.devices)) if index not in late]
        headroom = dict(candidate.headroom)
        repaired = candidate
        for _ in range(_MOST_GROWTHS):
            headroom |= {model: headroom.get(model, 1.0) * growth for model, growth in growths.items()}
            repaired = Candidate(
                candidate.caution,
                dict(headroom),
                [candidate.devices[index] for index in kept],
                list(candidate.unplaced),
                {new: candidate.outcomes[old] for new, old in enumerate(kept) if old in candidate.outcomes},
                candidate.run,
            )
            self._pack(repaired, demands)
            if repaired.devices not in self._seen:
                break
        return repaired

    def _growths(self, candidate: Candidate, late: Mapping[int, Sequence[str]]) -> dict[str, float]:
        """How much more headroom each late model gets: the more, the less of it was on time."""
        found: dict[str, float] = {}
        for index, names in sorted(late.items()):
            for name in names:
                attained = max(candidate.outcomes[index].models[ModelName(name)].attainment, _LEAST_ATTAINED)
                growth = _GROWTH * max(1.0, self._options.attainment / attained) ** 0.5
                found[name] = max(found.get(name, 1.0), growth)
        return found
