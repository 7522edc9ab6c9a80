"""The tables that come with the package: what they say, and what is refused."""

from __future__ import annotations

from itertools import pairwise

import pytest

from polymux.core.errors import InvalidRequest
from polymux.perfmodel import tables
from polymux.perfmodel.device_facts import DeviceFacts
from polymux.perfmodel.measurement import Measurement

EVERY_LOG = [(name, log) for name, logs in tables.measured("v100").items() for log in logs]


@pytest.mark.parametrize(
    ("name", "share", "at_share_ms", "at_full_ms"),
    [
        ("resnet50", 40, 28.0, 14.5),
        ("mobilenet", 30, 9.8, 5.4),
        ("alexnet", 30, 10.0, 4.9),
        ("vgg19", 50, 47.0, 29.7),
    ],
)
def test_the_measured_surfaces_say_what_the_logs_say_at_batch_16(name, share, at_share_ms, at_full_ms):
    surface = tables.surface("v100", name)
    assert surface.latency_ns(share, 16) / 1e6 == pytest.approx(at_share_ms, abs=0.05)
    assert surface.latency_ns(100, 16) / 1e6 == pytest.approx(at_full_ms, abs=0.05)


@pytest.mark.parametrize(
    ("name", "slice_part", "gain"),
    [("mobilenet", 1 / 6, 1.47), ("alexnet", 1 / 6, 1.94), ("resnet50", 1 / 3, 1.04), ("vgg19", 1 / 3, 1.26)],
)
def test_running_at_the_knee_gains_less_over_slices_of_time_than_flat_curves_promise(name, slice_part, gain):
    # Side by side each of the four runs two thirds of the time at its knee; in slices of 1:1:2:2 on the whole device.
    knee = tables.model("v100", name).knee_units
    for surface, expected in ((tables.surface, gain), (tables.flat_knee, 2 / 3 / slice_part)):
        known = surface("v100", name)
        here = (2 / 3) / known.latency_ns(knee, 16) / (slice_part / known.latency_ns(100, 16))
        assert here == pytest.approx(expected, abs=0.005)


@pytest.mark.parametrize(("name", "log"), EVERY_LOG)
def test_no_measured_surface_rises_with_the_share_or_falls_with_the_batch(name, log):
    surface = tables.surface("v100", name, log)
    assert surface.units[-1] >= 90
    for row in surface.table_ns:
        assert list(row) == sorted(row)
    for column in zip(*surface.table_ns, strict=True):
        assert list(column) == sorted(column, reverse=True)


@pytest.mark.parametrize(("name", "log"), EVERY_LOG)
def test_a_surface_is_within_two_percent_of_every_point_of_its_log(name, log):
    surface = tables.surface("v100", name, log)
    for point in tables.measurements("v100", name, log):
        if point.batch in surface.batches:
            assert surface.latency_ns(point.units, point.batch) == pytest.approx(point.latency_ns, rel=0.02)


def test_the_papers_table_has_eight_models_and_three_convnets():
    rows = [(m.name, m.knee_units, m.runtime_ns / 1e6, m.batch) for m in tables.models("v100").values()]
    assert rows[0] == ("mobilenet", 20, 10.0, 16)
    assert rows[-3:] == [
        ("convnet1", 30, 10.3, None),
        ("convnet2", 40, 14.6, None),
        ("convnet3", 60, 15.4, None),
    ]
    assert len(rows) == 11
    assert [name for name, m in tables.models("v100").items() if m.stated] == [
        "convnet1",
        "convnet2",
        "convnet3",
    ]


@pytest.mark.parametrize("name", tables.models("v100"))
def test_the_flat_surface_of_a_model_takes_the_papers_time_from_the_knee_on(name):
    model, surface = tables.model("v100", name), tables.flat_knee("v100", name)
    batch = model.batch or 1
    assert surface.max_batch == batch
    assert {surface.latency_ns(share, batch) for share in (model.knee_units, 80, 100)} == {model.runtime_ns}
    assert surface.latency_ns(10, batch) == model.runtime_ns * model.knee_units // 10
    assert surface.latency_ns(100, 1) <= model.runtime_ns


def test_the_assumed_part_of_a_batch_of_one_lies_among_the_measured_ones():
    parts = []
    for name, model in tables.models("v100").items():
        if model.framework is not None:
            surface = tables.flat_knee("v100", name)
            parts.append(surface.latency_ns(100, 1) / surface.latency_ns(100, 16))
    assert len(parts) == 4
    assert min(parts) < tables.BATCH_ONE_PART < max(parts)


def test_the_ridge_of_a_v100_is_139_operations_per_byte():
    assert tables.device("v100").ridge_flops_per_byte == pytest.approx(138.9, abs=0.05)
    assert tables.device("v100").ridge_flops_per_byte == pytest.approx(139.8, rel=0.01)  # the paper's


def test_newer_devices_are_larger():
    order = [tables.device(kind) for kind in ("t4", "v100", "a100", "h100")]
    assert list(tables.devices()) == ["v100", "t4", "a100", "h100"]
    for older, newer in pairwise(order):
        assert newer.compute_units > older.compute_units
        assert newer.bandwidth_bytes_per_s > older.bandwidth_bytes_per_s
        assert newer.tensor_flops_per_s > older.tensor_flops_per_s
        assert newer.max_watts > older.max_watts > older.idle_watts > 0


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: tables.device("v200"), "'v200' is in no table; give one of v100, t4, a100, h100"),
        (lambda: tables.models("v200"), "'v200' is in no table"),
        (lambda: tables.model("v100", "resnet5"), "'resnet5' is in no table for v100; there are: mobilenet"),
        (lambda: tables.model("t4", "resnet50"), "in no table for t4; there are: none"),
        (lambda: tables.surface("v100", "bert"), "'bert' was not measured on v100; measured were: alexnet"),
        (lambda: tables.surface("t4", "resnet50"), "was not measured on t4; measured were: none"),
        (lambda: tables.surface("v100", "mobilenet", "CNTK"), "with 'CNTK' on v100; give one of TensorRT"),
        (lambda: tables.flat_knee("v100", "gnmt"), "'gnmt' is in no table"),
        (lambda: Measurement(0, 1, 5), "a batch of 1 on 0 units"),
        (lambda: Measurement(1, 1, 5, count=-1), "-1 times"),
        (lambda: DeviceFacts("x", "x", 0, 1, 1, 1, 1, 1, 1), "0 compute units"),
        (lambda: DeviceFacts("x", "x", 1, 1, 1, 1, 1, 5, 6), "6 W idle and 5 W at most"),
    ],
)
def test_what_is_in_no_table_is_refused_with_what_there_is(call, complaint):
    with pytest.raises(InvalidRequest, match=complaint):
        call()
