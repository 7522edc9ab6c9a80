"""Clusters of pools behind a router: requests are split by weight, none is lost, and what cannot be is told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymux.core.errors import InvalidRequest
from polymux.core.ids import DeviceId
from polymux.core.serving.event import ServingDeviceLost
from polymux.core.serving.model import ModelName, ServedModel, ServingDevice
from polymux.perfmodel.surface import TableSurface
from polymux.policy.serving import registry
from polymux.policy.serving.interface import ServingPolicy
from polymux.sim.serving import ClosedLoop, Load, Poisson, Scenario, Slowdown, simulate
from polymux.sim.serving.cluster import Pool, Routed, merge, route, simulate_cluster, split

MS = 1_000_000
SURFACE = TableSurface((50, 100), (1, 8), ((4 * MS, 20 * MS), (2 * MS, 10 * MS)))
DEVICES = tuple(ServingDevice(DeviceId(f"gpu:{i}"), 100, (50, 100), "gpu") for i in range(3))
A, B = ModelName("a"), ModelName("b")


def load(name: ModelName, arrivals: Poisson | ClosedLoop) -> Load:
    rate = arrivals.mean_rate_per_s
    return Load(ServedModel(name, 50 * MS, {"gpu": SURFACE}, rate_per_s=rate), arrivals)


def scenario(**values: object) -> Scenario:
    loads = (load(A, Poisson(300)), load(B, Poisson(90)))
    return replace(Scenario(DEVICES, loads, 2_000 * MS, seed=3), **values)  # type: ignore[arg-type]


def pool(index: int, **weights: float) -> Pool:
    return Pool((DEVICES[index].id,), {ModelName(name): weight for name, weight in weights.items()})


POOLS = (pool(0, a=2), pool(1, a=1, b=1), pool(2, b=2))


def policy() -> ServingPolicy:
    return registry.load("unscheduled")


@given(st.integers(0, 300), st.lists(st.floats(0.01, 100), min_size=1, max_size=6))
def test_every_prefix_has_each_pool_as_often_as_its_weight_says(requests: int, weights: list[float]) -> None:
    chosen = route(requests, weights)
    assert chosen.shape == (requests,)
    parts = np.array(weights) / sum(weights)
    for end in range(requests + 1):
        counts = np.bincount(chosen[:end], minlength=len(weights))
        assert np.abs(counts - end * parts).max() < len(weights)


def test_a_pool_with_weight_0_gets_nothing() -> None:
    assert 1 not in route(50, [1, 0, 2])


def test_requests_are_those_of_the_whole_scenario_split_by_weight() -> None:
    whole = scenario()
    parts = [part for part in split(whole, POOLS) if part is not None]
    rng = np.random.default_rng([whole.seed, 0])
    times = whole.loads[0].arrivals.times_ns(rng, whole.duration_ns)
    sent = [part.loads[0].arrivals.times_ns(rng, whole.duration_ns) for part in parts[:2]]
    assert np.sort(np.concatenate(sent)).tolist() == times.tolist()
    assert len(sent[0]) == pytest.approx(2 * len(sent[1]), abs=3)
    assert parts[0].loads[0].model.rate_per_s == pytest.approx(200)
    assert parts[1].loads[1].model.rate_per_s == pytest.approx(30)
    assert len({part.seed for part in parts}) == 3


def test_the_outcome_has_every_request_once_and_all_devices() -> None:
    whole = scenario()
    outcome = simulate_cluster(policy, whole, POOLS)
    assert list(outcome.devices) == [device.id for device in DEVICES]
    for model in outcome.models.values():
        assert model.offered == model.answered + model.refused + model.failed + model.unfinished
        assert len(model.latencies_ns) == model.answered
        assert np.all(np.diff(model.latencies_ns) >= 0)
    assert outcome.offered == simulate(policy(), whole).offered
    ran = {(span.model, span.device) for span in outcome.spans}
    assert ran == {(A, "gpu:0"), (A, "gpu:1"), (B, "gpu:1"), (B, "gpu:2")}
    again = simulate_cluster(policy, whole, POOLS)
    assert [m.latencies_ns.tolist() for m in again.models.values()] == [
        m.latencies_ns.tolist() for m in outcome.models.values()
    ]


def test_one_pool_of_all_devices_is_the_scenario_itself() -> None:
    whole = scenario()
    outcome = simulate_cluster(policy, whole, [Pool(tuple(d.id for d in DEVICES), {A: 1.0, B: 1.0})])
    alone = simulate(policy(), whole)
    for name, model in alone.models.items():
        assert outcome.models[name].latencies_ns.tolist() == model.latencies_ns.tolist()


def test_a_pool_that_is_lost_gets_no_more_requests() -> None:
    lost = scenario(events=((1_000 * MS, ServingDeviceLost(DEVICES[0].id, "broken")),))
    parts = split(lost, POOLS)
    assert parts[0] is not None
    assert parts[1] is not None
    rng = np.random.default_rng(0)
    to_lost, to_other = (
        part.loads[0].arrivals.times_ns(rng, lost.duration_ns) for part in (parts[0], parts[1])
    )
    assert to_lost.max() < 1_000 * MS
    assert np.count_nonzero(to_other >= 1_000 * MS) > 200
    assert parts[0].events
    assert not parts[1].events


def test_slow_downs_and_shares_go_to_the_pools_that_have_the_model() -> None:
    slow = (Slowdown(B, 0, MS, 2.0),)
    pools = (replace(POOLS[0], ready={A: {DEVICES[0].id: (50,)}}), *POOLS[1:])
    parts = split(scenario(slowdowns=slow), pools)
    assert [part.slowdowns for part in parts if part is not None] == [(), slow, slow]
    outcome = simulate_cluster(policy, scenario(), pools)
    assert {span.units for span in outcome.spans if span.device == DEVICES[0].id} == {50}


def test_clients_of_a_closed_loop_are_shared_out() -> None:
    whole = replace(scenario(), loads=(load(A, ClosedLoop(3)), load(B, Poisson(90))))
    parts = split(whole, POOLS)
    loops = [part.loads[0].arrivals for part in parts if part is not None][:2]
    assert [loop.clients for loop in loops if isinstance(loop, ClosedLoop)] == [2, 1]
    assert simulate_cluster(policy, whole, POOLS).models[A].answered > 100


def test_a_pool_without_models_does_nothing_and_one_without_requests_is_well() -> None:
    whole = replace(scenario(), loads=(load(A, Poisson(0.0)),))
    pools = [pool(0, a=1), pool(1), pool(2)]
    assert [part is None for part in split(whole, pools)] == [False, True, True]
    assert simulate_cluster(policy, whole, pools).offered == 0
    assert merge(whole, []).models[A].attainment == 1.0


@pytest.mark.parametrize(
    ("pools", "what"),
    [
        (POOLS[:2], "device gpu:2 is in no pool"),
        ((*POOLS, pool(2, b=1)), "device gpu:2 is in two pools"),
        ((Pool((DeviceId("x"),), {}), *POOLS), "device x is not in the scenario"),
        ((pool(0, c=1), *POOLS[1:]), "model c is not in the scenario"),
        ((pool(0, a=0), *POOLS[1:]), "model a has the weight 0"),
        ((pool(0, a=1), pool(1, a=1), pool(2)), "model b is in no pool"),
    ],
)
def test_pools_that_do_not_fit_the_scenario_are_told(pools: tuple[Pool, ...], what: str) -> None:
    with pytest.raises(InvalidRequest, match=what):
        split(scenario(), pools)


def test_what_a_router_sends_is_not_scaled_by_itself() -> None:
    with pytest.raises(InvalidRequest, match="scale the scenario"):
        Routed(np.empty(0, np.int64), 0.0).scaled(2)
