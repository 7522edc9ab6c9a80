"""On how many units a model runs, and with which batch: D-STACK's operating point, and what a policy may start now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from polymux.core.errors import InvalidRequest
from polymux.core.ids import DeviceId
from polymux.core.serving.event import InstanceFailed, ServingEvent
from polymux.core.serving.model import LatencySurface, ModelName, ServedModel, ServingDevice
from polymux.core.serving.view import DeviceState, ModelState, RunningBatch, ServingView
from polymux.core.value import value
from polymux.policy.serving.instances import Instances, nearest
from polymux.policy.serving.knee_search import KneeSearch, KneeSearches, LearnedSurface, first_share

SECOND_NS = 1_000_000_000
_MOST_BATCHES = 64


@dataclass(frozen=True, slots=True)
class Point:
    """A share and a batch.

    Parameters
    ----------
    units : int
    batch : int
        Most items.
    """

    units: int
    batch: int


@value
class Candidate:
    """A batch that waits to be started.

    Parameters
    ----------
    state : ModelState
    units, requests, items : int
    run_ns : int
        How long it should take, at least 1.
    startable : bool
        Whether its share is free now.
    """

    state: ModelState
    units: int
    requests: int
    items: int
    run_ns: int
    startable: bool

    @property
    def name(self) -> ModelName:
        """Of the model."""
        return self.state.model.name


class OperatingPoints:
    """The operating point of each model on each device: given by the operator, or else found on the surface.

    Parameters
    ----------
    given : dict of str to (int, int)
        Units and batch by model; a batch of 0 is chosen here.
    searching : bool
        Whether models without a surface are moved until their knee is found; otherwise they stay on 30 %.

    Attributes
    ----------
    instances : Instances
    """

    def __init__(self, given: dict[str, tuple[int, int]] | None = None, *, searching: bool = False) -> None:
        self._given = given or {}
        self._searches = KneeSearches() if searching else None
        self._known: dict[tuple[ModelName, DeviceId], tuple[ServedModel, Point]] = {}
        self.instances = Instances(lambda state, spec: self.wanted(state, spec).units)

    @classmethod
    def parse(cls, policy: str, option: str, *, searching: bool = False) -> Self:
        """Read ``MODEL:UNITS`` or ``MODEL:UNITS@BATCH``, with commas between; empty: nothing is given.

        Raises
        ------
        InvalidRequest
            For anything else.
        """
        given: dict[str, tuple[int, int]] = {}
        for part in option.split(",") if option else ():
            name, _, point = part.rpartition(":")
            units, _, batch = point.partition("@")
            numbers = (units, batch or "0")
            if not name or not all(number.isdecimal() for number in numbers) or int(units) < 1:
                raise InvalidRequest(
                    f"policy {policy!r}: {part!r} is no operating point; give MODEL:UNITS or MODEL:UNITS@BATCH,"
                    " with commas between"
                )
            given[name] = (int(units), int(batch or 0))
        return cls(given, searching=searching)

    def wanted(self, state: ModelState, spec: ServingDevice) -> Point:
        """Where a model should run, whether or not it is ready there.

        Raises
        ------
        InvalidRequest
            If the operator gave a share that the device does not offer.
        """
        search = self._search(state, spec)
        if search is not None:
            return Point(search.share, self._batch(search, state))
        key = (state.model.name, spec.id)
        known = self._known.get(key)
        if known is None or known[0] is not state.model:
            known = self._known[key] = (state.model, self._find(state, spec))
        return known[1]

    def usable(self, state: ModelState, spec: ServingDevice) -> Point | None:
        """Where a model can run now: `wanted`, or the nearest share on which it is ready; None: on no share."""
        ready = state.ready.get(spec.id)
        if not ready:
            return None
        wanted = self.wanted(state, spec)
        return wanted if wanted.units in ready else Point(nearest(ready, wanted.units), wanted.batch)

    def candidates(self, view: ServingView, device: DeviceState) -> list[Candidate]:
        """Batches that wait for a device, one for each model: a model has at most one at a time on a device."""
        found = []
        device_id = device.spec.id
        for state in view.waiting_in_order():
            if state.running and device_id in [batch.device for batch in state.running.values()]:
                continue
            point = self.usable(state, device.spec)
            if point is not None:
                requests, items = take(state, point.batch)
                run_ns = self.run_ns(state, device.spec, point.units, items)
                startable = point.units in device.startable
                found.append(Candidate(state, point.units, requests, items, run_ns, startable))
        return found

    def run_ns(self, state: ModelState, spec: ServingDevice, units: int, items: int) -> int:
        """How long a batch should take, at least 1 ns: by the surface, by what was measured, or half the SLO."""
        search = self._search(state, spec)
        if search is not None and search.times_ns:
            return LearnedSurface(search, state.max_batch(spec), 1).latency_ns(units, items)
        return run_time_ns(state, spec, units, items)

    def observe(self, view: ServingView, event: ServingEvent, now: int) -> None:
        """Learn from what happened about models without a surface; to be called first in each decision."""
        if self._searches is None:
            return
        if isinstance(event, InstanceFailed) and event.model in view.models and event.device in view.devices:
            search = self._search(view.models[event.model], view.devices[event.device].spec)
            if search is not None:
                search.exclude(event.units)
        if self._searches.observe(view, event, now):
            self.instances.moved = True

    def _search(self, state: ModelState, spec: ServingDevice) -> KneeSearch | None:
        model = state.model
        if self._searches is None or spec.kind in model.surfaces or model.name in self._given:
            return None
        return self._searches.of(model.name, spec)

    @staticmethod
    def _batch(search: KneeSearch, state: ModelState) -> int:
        """Largest batch that keeps half the SLO by what was measured; one until something was."""
        if not search.times_ns:
            return 1
        most = state.model.max_batch
        learned = LearnedSurface(search, most, 1)
        return _largest(learned, search.share, most, state.model.slo_ns // 2) or 1

    def _find(self, state: ModelState, spec: ServingDevice) -> Point:
        given = self._given.get(state.model.name)
        if given is None:
            return optimum(state, spec)
        units, batch = given
        if units not in spec.shares:
            raise InvalidRequest(
                f"model {state.model.name}: {units} units were given for it, but device {spec.id} offers"
                f" {', '.join(map(str, spec.shares))}"
            )
        most = state.max_batch(spec)
        return Point(units, min(batch, most) if batch else adaptive_batch(state, spec, units))


def optimum(state: ModelState, spec: ServingDevice) -> Point:
    """Find the operating point of a model on its latency surface.

    The share p and batch b that serve most requests per unit and time, b / (f(p, b) p), and of those that serve as many
    (within 0.1 %) the fastest: where the surface is flat beyond a knee, that is the knee. Both under f(p, b) + C <=
    SLO, C being the time to collect the batch where the rate is known, and f(p, b) <= SLO / 2, so that a request that
    just missed a batch makes the next. Where nothing keeps the half, the whole SLO counts, and where nothing keeps that
    either, the fastest share and the largest batch. Batches of at most half the largest that keeps the limit are left
    out: the smallest shares with small batches serve many requests per unit, but too few in all. A model without a
    surface gets 30 % of the device.

    Notes
    -----
    D-STACK maximises the efficacy b / (f^2 p) instead. At the knees of a flat surface both agree. On measured surfaces
    the square puts batches of 16 on 50 to 90 % of a V100, where no two models fit side by side; this rule finds 30, 30,
    40 and 50 % for MobileNet, AlexNet, ResNet-50 and VGG-19 with the paper's SLOs, where the paper has 20 to 50 %.

    References
    ----------
    D-STACK, equations 9 to 12; section on models without a profile.
    """
    surface = state.model.surfaces.get(spec.kind)
    if surface is None:
        return Point(first_share(spec.shares, spec.units), state.max_batch(spec))
    slo_ns, rate = state.model.slo_ns, state.model.rate_per_s
    for part in (2, 1):
        feasible: list[tuple[float, int, Point]] = []
        for batch in batch_sizes(surface.max_batch):
            collect_ns = (batch - 1) * SECOND_NS / rate if rate else 0.0
            limit_ns = min(slo_ns / part, slo_ns - collect_ns)
            for share in spec.shares:
                time_ns = surface.latency_ns(share, batch)
                if time_ns <= limit_ns:
                    feasible.append((batch / (time_ns * share), time_ns, Point(share, batch)))
        if feasible:
            largest = max(point.batch for _, _, point in feasible)
            large = [choice for choice in feasible if 2 * choice[2].batch > largest]
            most = max(served for served, _, _ in large)
            good = [(time_ns, point) for served, time_ns, point in large if served >= 0.999 * most]
            return min(good, key=lambda choice: (choice[0], choice[1].units))[1]
    batch = surface.max_batch
    return Point(min(spec.shares, key=lambda share: (surface.latency_ns(share, batch), share)), batch)


def adaptive_batch(state: ModelState, spec: ServingDevice, units: int) -> int:
    """Largest batch that takes at most half the SLO on a share; or else at most the SLO; or else the largest.

    Half, because a request may have to wait for the batch before its own.

    References
    ----------
    Clipper (NSDI 2017) and Nexus (SOSP 2019): adaptive batching under an SLO.
    """
    surface = state.model.surfaces.get(spec.kind)
    most = state.max_batch(spec)
    if surface is None:
        return most
    for limit_ns in (state.model.slo_ns // 2, state.model.slo_ns):
        batch = _largest(surface, units, most, limit_ns)
        if batch:
            return batch
    return most


def _largest(surface: LatencySurface, units: int, most: int, limit_ns: int) -> int:
    """Largest batch of at most `most` that takes at most so long on a share; 0: not even one item does."""
    if surface.latency_ns(units, most) <= limit_ns:
        return most
    low, high = 0, most - 1
    while low < high:
        middle = (low + high + 1) // 2
        if surface.latency_ns(units, middle) <= limit_ns:
            low = middle
        else:
            high = middle - 1
    return low


def take(state: ModelState, most_items: int) -> tuple[int, int]:
    """Count the first waiting requests that make a batch of at most so many items; at least one.

    Returns
    -------
    requests, items : int
    """
    waiting = state.waiting
    if state.waiting_items == len(waiting):
        count = max(1, min(len(waiting), most_items))
        return count, count
    requests = items = 0
    for request in waiting:
        if requests and items + request.items > most_items:
            break
        requests, items = requests + 1, items + request.items
    return requests, items


def run_time_ns(state: ModelState, spec: ServingDevice, units: int, items: int) -> int:
    """How long a batch should take, at least 1 ns; half the SLO where nothing is known."""
    return max(1, state.expected_ns(spec, units, items) or state.model.slo_ns // 2)


def expected_end_ns(batch: RunningBatch, slo_ns: int, now: int) -> int:
    """When a running batch should end, always after now; one that is late takes a tenth of its time more."""
    expected_ns = batch.expected_ns or slo_ns // 2
    end_ns = batch.start_ns + expected_ns
    if end_ns < now:
        return now + max(1, expected_ns // 10)
    return max(end_ns, now + 1)


def batch_sizes(most: int) -> Sequence[int]:
    """Batch sizes worth a look, up to `most`: each, or in steps where there are very many."""
    if most <= _MOST_BATCHES:
        return range(1, most + 1)
    return sorted({1, *(most * step // _MOST_BATCHES for step in range(1, _MOST_BATCHES + 1))})
