"""More devices than one engine schedules: a cluster of pools with placed models."""

from __future__ import annotations

from typing import Any

import pytest

from polymux.core.errors import InvalidRequest
from polymux.planning.cluster import MOST_IN_ONE_POOL, place_pools
from polymux.planning.run import run_policy
from polymux.planning.workload import Workload, parse_workload
from polymux.sim.serving.cluster import split

SURFACE = {"share": [50, 100], "batch": [1, 16], "latency_ms": [[6, 24], [4, 16]]}


def workload(
    count: int, *rates: float, memory: str = "1KiB", arrivals: dict[str, Any] | None = None
) -> Workload:
    models = [
        {
            "name": f"m{i}", "slo_ms": 100, "surface": [SURFACE], "memory": memory,
            "arrivals": arrivals or {"process": "poisson", "rate_per_s": rate},
        }
        for i, rate in enumerate(rates)
    ]  # fmt: skip
    device = {"kind": "gpu", "count": count, "shares": [25, 50, 100], "memory": "100MiB"}
    return parse_workload("test.toml", {"simulation": {"duration_s": 1}, "device": [device], "model": models})


def test_enough_devices_get_packed_models_on_planned_shares() -> None:
    given = workload(12, 2000, 1000, 500, 0)
    pools = place_pools(given.scenario())
    assert sorted(name for pool in pools for name in pool.devices) == sorted(
        d.id for d in given.scenario().devices
    )
    assert all(pool.ready.keys() == pool.weights.keys() for pool in pools if pool.weights)
    outcome = run_policy(given, "spacetime").outcome
    assert outcome.attainment > 0.99
    assert len(outcome.devices) == 12
    assert outcome.models.keys() == {load.model.name for load in given.loads}


def test_too_few_devices_are_loaded_evenly_on_all_shares() -> None:
    given = workload(9, 20_000, 10_000, 3000)
    pools = place_pools(given.scenario())
    assert all(pool.weights and not pool.ready for pool in pools)
    outcome = run_policy(given, "spacetime").outcome
    assert outcome.offered == sum(
        m.answered + m.refused + m.unfinished + m.failed for m in outcome.models.values()
    )
    used = [device.utilisation for device in outcome.devices.values()]
    assert min(used) > 0.5


def test_closed_loops_are_placed_by_their_clients() -> None:
    given = workload(10, 0, arrivals={"process": "closed_loop", "clients": 400, "think_s": 0.05})
    parts = split(given.scenario(), place_pools(given.scenario()))
    assert sum(part is not None for part in parts) > 1
    assert run_policy(given, "spacetime").outcome.offered > 400


def test_models_that_no_memory_holds_are_told() -> None:
    with pytest.raises(InvalidRequest, match="m0.*memory"):
        place_pools(workload(9, 10, 10, memory="200MiB").scenario())


def test_the_cluster_goes_on_telling_how_far_it_is() -> None:
    told: list[tuple[str, int, int]] = []
    run_policy(workload(MOST_IN_ONE_POOL + 1, 3000), "unscheduled", progress=lambda *each: told.append(each))
    assert {what for what, _, _ in told} == {"placing models", "simulating devices"}
    simulated = [done for what, done, _ in told if what == "simulating devices"]
    assert simulated
    assert simulated == sorted(simulated)
    assert simulated[-1] == told[-1][2]


def test_one_pool_tells_how_far_it_is_from_the_first_model_on() -> None:
    told: list[tuple[str, int, int]] = []
    run_policy(workload(1, 300), "unscheduled", progress=lambda *each: told.append(each))
    assert list(dict.fromkeys(what for what, _, _ in told)) == [
        "making requests",
        "starting models",
        "simulating",
    ]
    assert all(0 <= done <= total for _, done, total in told)
