"""The set-ups of `polymux bench switchflow`: models as their papers say, times as measured, and what comes out."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from polymux.bench.switchflow import SetupReport, compare
from polymux.bench.switchflow_models import REQUEST_MS, STEP_MS, layers, request, training
from polymux.bench.switchflow_setups import _merged, beside_training, equal_trainings, two_trainings

MS = 1_000_000


@pytest.mark.parametrize(
    ("model", "count", "billions"),
    [("vgg16", 16, 15.5), ("vgg19", 19, 19.6), ("resnet50", 54, 3.9), ("mobilenet", 28, 0.57)],
)
def test_layers_have_the_operations_that_the_papers_say(model: str, count: int, billions: float):
    found = layers(model)
    assert len(found) == count
    assert sum(layer.macs for layer in found) / 1e9 == pytest.approx(billions, rel=0.03)


@pytest.mark.parametrize(("kind", "model"), STEP_MS)
def test_a_training_step_takes_as_long_as_was_measured_and_can_be_left_after_each_layer(
    kind: str, model: str
):
    step = training(kind, model)
    assert step.run_ns / MS == pytest.approx(STEP_MS[kind, model], rel=0.001)
    assert len(step.boundary_ends_ns) == 2 * len(layers(model))


@pytest.mark.parametrize("model", REQUEST_MS)
def test_a_request_takes_as_long_as_was_measured(model: str):
    assert request("v100", model).run_ns / MS == pytest.approx(REQUEST_MS[model], rel=0.001)


def test_requests_next_to_vgg16_are_answered_ten_times_sooner_and_training_keeps_the_rest():
    results = {
        result["policy"]: result for result in compare(beside_training("v100", "vgg16", "resnet50", 0.15, 6))
    }
    assert list(results) == ["alone", "unmanaged", "processes", "time_slicing", "switchflow"]
    assert results["switchflow"]["met"] is True
    assert results["switchflow"]["below"] > 10
    assert results["alone"]["p99_ms"] < results["switchflow"]["p99_ms"] < results["processes"]["p99_ms"] < 25
    assert 0.8 < results["switchflow"]["train_fraction"] < 0.88


def test_two_trainings_that_exceed_the_memory_both_go_on_only_where_somebody_keeps_them_apart():
    unmanaged, processes, slicing, switchflow = compare(equal_trainings(6))
    assert unmanaged["failures"] == processes["failures"] == {"vgg16": "out of memory"}
    for result in (slicing, switchflow):
        assert result["failures"] == {}
        assert all(part > 0.4 for part in result["jobs"].values())
        assert result["peak_nbytes"] < 11 << 30


def test_a_victim_keeps_most_of_its_speed_on_a_second_device():
    alone, second = (compare(two_trainings(kind, 20))[-1]["jobs"] for kind in ("", "1080ti"))
    assert min(alone["high"], second["high"]) > 0.95
    assert (alone["low"], second["low"]) == (pytest.approx(0.5, abs=0.02), pytest.approx(0.85, abs=0.02))


def test_spans_that_touch_are_one():
    assert _merged([(0, 5), (3, 4), (5, 7), (9, 10)]) == ((0, 7), (9, 1))


def test_the_table_names_a_set_up_once_and_tells_failures():
    results = compare(equal_trainings(2))
    out = io.StringIO()
    SetupReport("switchflow", "title", (), results, ("a note",)).print(Console(file=out, width=100))
    text = out.getvalue()
    assert text.count("2080ti: vgg16 beside resnet50") == 1
    assert "vgg16 out of memory" in text
    assert "a note" in text
