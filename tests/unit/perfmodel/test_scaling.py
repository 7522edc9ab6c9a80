"""Surfaces estimated for devices on which a model was not measured."""

from __future__ import annotations

import csv
from importlib.resources import files

import pytest

from polymux.core.errors import InvalidRequest
from polymux.perfmodel import tables
from polymux.perfmodel.measurement import Measurement
from polymux.perfmodel.scaling import scale_surface

SHARES = tuple(range(10, 101, 10))


def _published():
    text = files("polymux.perfmodel").joinpath("data", "full_device_latency.csv").read_text("utf-8")
    rows = csv.DictReader(text.splitlines())
    return {(row["model"], row["device"], int(row["batch"])): float(row["average_ms"]) for row in rows}


@pytest.mark.parametrize("framework", ["TensorRT", "CNTK"])
@pytest.mark.parametrize("kind", ["t4", "a100"])
def test_the_ratio_between_devices_is_the_published_one_of_resnet50(kind, framework):
    published = _published()
    known = tables.surface("v100", "resnet50", framework)
    scaled = tables.scaled_surface(kind, "resnet50", framework)
    for batch in (1, 2, 4, 8, 16, 32):
        expected = published["resnet50", kind, batch] / published["resnet50", "v100", batch]
        ratio = scaled.latency_ns(100, batch) / known.latency_ns(100, batch)
        assert ratio == pytest.approx(expected, rel=0.17 if batch == 32 else 0.08)


def test_the_rule_is_not_for_large_transformers():
    published = _published()
    gain = published["bert_large", "v100", 16] / published["bert_large", "a100", 16]
    assert gain > 1.4 * published["resnet50", "v100", 16] / published["resnet50", "a100", 16]


def test_an_h100_is_twice_an_a100_at_large_batches():
    older, newer = (tables.scaled_surface(kind, "resnet50").latency_ns(100, 32) for kind in ("a100", "h100"))
    assert older / newer == pytest.approx(2, rel=0.03)


def test_the_same_device_has_its_own_surface():
    scaled, known = tables.scaled_surface("v100", "mobilenet"), tables.surface("v100", "mobilenet")
    for share in SHARES:
        for batch in known.batches:
            assert scaled.latency_ns(share, batch) == pytest.approx(known.latency_ns(share, batch), rel=0.01)


@pytest.mark.parametrize("kind", tables.devices())
@pytest.mark.parametrize("name", ["mobilenet", "alexnet", "resnet50", "vgg19"])
def test_a_scaled_surface_never_rises_with_the_share_or_falls_with_the_batch(kind, name):
    surface = tables.scaled_surface(kind, name)
    assert surface.units == SHARES
    for row in surface.table_ns:
        assert list(row) == sorted(row)
    for column in zip(*surface.table_ns, strict=True):
        assert list(column) == sorted(column, reverse=True)


def test_half_the_units_at_twice_the_speed():
    points = [Measurement(share, 1, 1_000_000 // share) for share in (10, 20, 50, 100)]
    scaled = scale_surface(points, (20, 40, 100), 0.5, 2.0)
    assert [scaled.latency_ns(share, 1) for share in (20, 40, 100)] == [50_000, 25_000, 10_000]


@pytest.mark.parametrize(
    ("shares", "ratio", "speed"), [((), 1, 1), ((0,), 1, 1), ((1,), 0, 1), ((1,), 1, -1)]
)
def test_a_scaling_without_shares_or_factors_is_refused(shares, ratio, speed):
    with pytest.raises(InvalidRequest, match="surface scaled to"):
        scale_surface([Measurement(1, 1, 1)], shares, ratio, speed)


def test_a_flat_surface_keeps_its_knee_in_compute_units_even_beyond_what_the_other_device_has():
    assert tables.scaled_flat_knee("v100", "vgg19") == tables.flat_knee("v100", "vgg19")
    assert tables.scaled_flat_knee("t4", "vgg19").knee_units == 100
    convnet = tables.scaled_flat_knee("t4", "convnet3")  # 60 % of a V100 are 48 units, a T4 has 40
    assert convnet.knee_units == 120
    assert convnet.latency_ns(100, 1) == pytest.approx(15.4e6 * 1.2)
    larger = tables.scaled_flat_knee("a100", "bert")
    assert larger.knee_units == 22
    assert larger.latency_ns(30, 16) == pytest.approx(9e6 / 1.33, rel=0.001)


def test_what_was_not_measured_on_a_v100_cannot_be_scaled():
    with pytest.raises(InvalidRequest, match="'bert' was not measured on v100"):
        tables.scaled_surface("t4", "bert")
