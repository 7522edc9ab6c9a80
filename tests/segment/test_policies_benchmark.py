"""A small part of ``polymux bench policies``: two models, two policies, short loads. Nothing here judges a time."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from polymux.bench.policies.benchmark import Size, measure
from polymux.bench.policies.generator import Plan, read_plan
from polymux.bench.policies.workload import Served, Workload
from polymux.perfmodel.interference import NO_INTERFERENCE
from polymux.perfmodel.surface import TableSurface
from polymux.profiling.options import ProfileOptions
from tests.unit.serving.scheduling.rig import DEVICE

SMALL = Size(
    models=("turn_text", "name_file_type"),
    policies=("unscheduled", "spacetime"),
    loads=(1.2,),
    seconds=0.7,
    bare_s=0.01,
    capacity_requests=60,
    exchanges=30,
    profile=ProfileOptions(batches=(1, 4), min_repeats=8, max_repeats=8, place_s=0.1),
)


@pytest.mark.slow
@pytest.mark.timeout(600)  # on a loaded machine front ends take long to start
def test_every_policy_has_a_goodput_and_a_prediction_at_a_load() -> None:
    told: list[str] = []
    report = measure(SMALL, told.append)
    results = json.loads(json.dumps(report.results))
    assert list(results) == ["unscheduled", "spacetime"]
    for loads in results.values():
        assert list(loads) == ["1.2"]
        for result in loads.values():
            assert {"goodput", "admitted_on_time", "predicted_goodput"} <= result.keys()
            assert 0 <= result["admitted_on_time"] <= 1
            assert result["predicted_goodput"] > 0
            assert result["failed"] == 0
            assert set(result["models"]) == set(SMALL.models)
    offered = {load: results["unscheduled"][load]["offered"] for load in ("1.2",)}
    assert offered == {load: results["spacetime"][load]["offered"] for load in ("1.2",)}
    assert any("beside" in what for what in told)
    console = Console(record=True, width=140)
    report.print(console)
    text = console.export_text()
    assert "spacetime at 1.2" in text
    assert "predicted" in text


def test_a_plan_is_read_as_it_was_written() -> None:
    plan = Plan("127.0.0.1", 8000, ("R0VUIC8=",), (0, 0), (5, 7), drain_s=1.5)
    assert read_plan(plan.to_json()) == plan


def test_the_same_seed_gives_the_same_arrivals_whatever_the_policy() -> None:
    surface = TableSurface((1,), (1,), ((1000,),))
    models = tuple(Served(name, surface, 10, part, "") for name, part in (("a", 0.25), ("b", 0.75)))
    workload = Workload(models, DEVICE, NO_INTERFERENCE, Path(), Path())
    times, owners = workload.arrivals(1000, 2, 7)
    again, owners_again = workload.arrivals(1000, 2, 7)
    assert np.array_equal(times, again)
    assert np.array_equal(owners, owners_again)
    assert (np.diff(times) >= 0).all()
    assert len(times) == 2000
    assert np.count_nonzero(owners == 0) == 500
    assert 0 < np.count_nonzero(owners[:1000] == 0) < 500
