"""Plans of capacity: enough devices, checked and repaired, with what is the bottleneck; and what cannot be planned."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from polymux.core.errors import InvalidRequest
from polymux.planning.plan import Plan, make_plan
from polymux.planning.plan_chart import draw_plan
from polymux.planning.plan_report import bottleneck, plan_results, print_plan
from polymux.planning.plan_search import Candidate, PlanOptions, PlanSearch
from polymux.planning.workload import Workload, parse_workload

SURFACE = {"share": [50, 100], "batch": [1, 16], "latency_ms": [[6, 24], [4, 16]]}


def model(name: str, rate: float = 300, slo_ms: float = 100, **values: Any) -> dict[str, Any]:
    return {"name": name, "slo_ms": slo_ms, "rate_per_s": rate, "surface": [SURFACE], **values}


def workload(
    *models: dict[str, Any], devices: list[dict[str, Any]] | None = None, seconds: float = 1.0
) -> Workload:
    device = {"kind": "gpu", "shares": [25, 50, 100]}
    content = {"simulation": {"duration_s": seconds}, "device": devices or [device], "model": list(models)}
    return parse_workload("test.toml", content)


def plan(*models: dict[str, Any], devices: list[dict[str, Any]] | None = None, **options: Any) -> Plan:
    return make_plan(workload(*models, devices=devices), PlanOptions(**options))


def text_of(found: Plan) -> str:
    written = StringIO()
    print_plan(Console(width=140, file=written), found)
    return written.getvalue()


def test_a_plan_is_met_in_the_simulation_and_says_who_is_where() -> None:
    found = plan(model("a", 900), model("b", 300), model("c", 5))
    assert found.is_met
    assert found.outcome is not None
    assert found.outcome.offered > 1000
    assert all(m.attainment > 0.95 for m in found.outcome.models.values())
    assert found.placement.hosts().keys() == {"a", "b", "c"}
    assert len(found.placement.devices) >= found.bound.devices(found.kinds)
    assert found.simulated >= 2 * len(found.placement.devices)
    results = json.loads(json.dumps(plan_results(found)))
    assert results["met"] is True
    assert results["devices"] == {"gpu": len(found.placement.devices)}
    rates = {"a": 0.0, "b": 0.0, "c": 0.0}
    for device in results["placement"]:
        assert sum(lane["share"] for lane in device["lanes"]) <= 100
        for lane in device["lanes"]:
            for placed in lane["models"]:
                rates[placed["model"]] += placed["rate_per_s"]
    assert rates == pytest.approx({"a": 900, "b": 300, "c": 5})
    text = text_of(found)
    for part in ("checked by simulation", "bottleneck", "no placement has fewer than"):
        assert part in text


def test_the_same_workload_has_the_same_plan() -> None:
    assert plan_results(plan(model("a", 900), model("b"))) == plan_results(plan(model("a", 900), model("b")))


def test_batches_run_on_the_shares_of_the_plan() -> None:
    found = plan(model("a", 500), model("b", 200))
    assert found.outcome is not None
    assert found.outcome.attainment > 0.99
    planned = {name for device in found.placement.devices for name in device.models}
    assert planned == set(found.outcome.models)


def test_few_devices_are_not_divided_where_that_takes_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polymux.planning.plan_search._CAUTIONS", (4.0,))
    lone = {"share": [50, 100], "batch": [1], "latency_ms": [[39], [20]]}
    models = [model(f"m{i}", 2, slo_ms=90, surface=[lone]) for i in range(5)]
    found = plan(*models, attainment=0.9)
    assert found.is_met
    assert [device.free for device in found.placement.devices] == [True]
    assert "any share" in text_of(found)
    assert plan_results(found)["placement"][0]["divided"] is False


def test_more_requests_take_more_devices_and_a_higher_attainment_not_fewer() -> None:
    some, more = plan(model("a", 1000)), plan(model("a", 4000))
    assert len(more.placement.devices) > len(some.placement.devices)
    strict = plan(model("a", 1000), attainment=0.9999)
    assert len(strict.placement.devices) >= len(some.placement.devices)


def test_devices_that_are_late_are_taken_apart_until_they_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = PlanSearch._late
    judged: list[int] = []

    def unlucky(self: PlanSearch, candidate: Candidate) -> dict[int, list[str]]:
        judged.append(len(candidate.devices))
        late = judge(self, candidate)
        with_a = next(i for i, device in enumerate(candidate.devices) if "a" in device.models)
        return {with_a: ["a"]} if len(judged) in (1, 2) else late

    monkeypatch.setattr("polymux.planning.plan_search._CAUTIONS", (1.0,))
    monkeypatch.setattr(PlanSearch, "_late", unlucky)
    found = plan(model("a", 900), model("b", 300))
    assert found.is_met
    assert judged == sorted(judged)
    assert len(judged) >= 4
    assert found.outcome is not None
    assert found.outcome.devices.keys() == {f"gpu:{i}" for i in range(len(found.placement.devices))}


def test_what_is_far_too_late_gets_far_more_headroom() -> None:
    found = plan(model("a", 4000), policy="unscheduled", attainment=0.9)
    alone = plan(model("a", 4000), policy="unscheduled", attainment=0.9, check=False)
    assert found.is_met
    assert len(found.placement.devices) > 2 * len(alone.placement.devices)


def test_a_plan_that_no_round_repairs_is_not_met_and_names_the_models() -> None:
    found = plan(model("a", 30_000), rounds=1, policy="unscheduled", attainment=0.9999)
    assert not found.is_met
    assert found.missed == ("a",)
    assert "not met" in text_of(found)
    assert "late of a" in text_of(found)


def test_without_a_check_nothing_is_simulated_and_that_is_said() -> None:
    found = plan(model("a"), check=False)
    assert found.outcome is None
    assert found.simulated == 0
    assert "not checked by simulation" in text_of(found)
    assert plan_results(found)["checked"] is False


def test_a_limit_that_does_not_suffice_is_told_with_the_model() -> None:
    found = plan(model("a", 20_000), limits={"gpu": 2})
    assert not found.is_met
    assert len(found.placement.devices) == 2
    assert "all 2 devices of kind gpu" in text_of(found)
    assert plan_results(found)["unplaced"][0]["model"] == "a"


def test_the_cheaper_kind_is_chosen() -> None:
    kinds = [
        {"kind": "dear", "cost": 5, "shares": [50, 100]},
        {"kind": "cheap", "cost": 1, "shares": [50, 100]},
    ]
    found = plan(model("a", 500), devices=kinds)
    assert set(found.placement.counts) == {"cheap"}
    assert found.cost == len(found.placement.devices)
    assert "costs less than" in text_of(found)


def test_memory_is_named_when_it_is_the_bottleneck() -> None:
    devices = [{"kind": "gpu", "shares": [50, 100], "memory": "10GiB"}]
    found = plan(*(model(f"m{i}", 5, memory="4GiB") for i in range(6)), devices=devices)
    assert found.is_met
    assert found.placement.counts == {"gpu": 3}
    assert found.causes[0].name == "memory"
    assert "weights that do not fit" in bottleneck(found)
    assert "devices with more memory" in bottleneck(found)


def test_a_model_without_requests_is_placed() -> None:
    found = plan(model("idle", 0), model("busy", 100))
    assert found.is_met
    assert "idle" in found.placement.hosts()


def test_bursts_take_more_devices_than_equal_distances() -> None:
    def of(arrivals: dict[str, Any]) -> int:
        each = {"name": "a", "slo_ms": 60, "surface": [SURFACE], "arrivals": arrivals}
        return len(plan(each, check=False).placement.devices)

    bursty = {"process": "bursty", "rates_per_s": [200, 3800], "stay_s": [0.5, 0.5]}
    assert of(bursty) > of({"process": "uniform", "rate_per_s": 2000})


@pytest.mark.parametrize(
    ("models", "options", "what"),
    [
        ([model("a")], {"limits": {"tpu": 3}}, "no devices of kind 'tpu'"),
        ([model("a")], {"policy": "none"}, "serving policy 'none' is unknown"),
        (
            [{**model("a"), "rate_per_s": None, "arrivals": {"process": "closed_loop", "clients": 3}}],
            {},
            "model a: a closed loop of 3 clients has no rate to plan for",
        ),
    ],
)
def test_what_cannot_be_planned_is_told(
    models: list[dict[str, Any]], options: dict[str, Any], what: str
) -> None:
    cleaned = [{key: value for key, value in each.items() if value is not None} for each in models]
    with pytest.raises(InvalidRequest, match=what):
        plan(*cleaned, **options)


@pytest.mark.parametrize("attainment", [0.0, 1.0, -1.0, 99.0, float("nan")])
def test_an_attainment_that_cannot_be_is_told(attainment: float) -> None:
    with pytest.raises(InvalidRequest, match="attainment is .*such as 0.99"):
        PlanOptions(attainment=attainment)


def test_a_few_and_many_devices_are_drawn(tmp_path: Path) -> None:
    few = plan(model("a", 900), model("b", 5), check=False)
    draw_plan(tmp_path / "few.png", few)
    many = plan(model("a", 100_000), check=False)
    assert len(many.placement.devices) > 48
    draw_plan(tmp_path / "many.svg", many)
    assert (tmp_path / "few.png").stat().st_size > 5_000
    assert "<svg" in (tmp_path / "many.svg").read_text()
    with pytest.raises(InvalidRequest, match="name the picture"):
        draw_plan(tmp_path / "plan.xyz", few)
    none = plan(model("a"), limits={"gpu": 0}, check=False)
    with pytest.raises(InvalidRequest, match="nothing to draw"):
        draw_plan(tmp_path / "none.png", none)
