"""On how many units a model runs, and with which batch."""

from __future__ import annotations

from collections import deque

import pytest

from polymux.core.errors import InvalidRequest
from polymux.core.ids import DeviceId
from polymux.core.serving.model import ModelName, Request, RequestId, ServedModel, ServingDevice
from polymux.core.serving.view import ModelState
from polymux.perfmodel.flat_knee import FlatKneeSurface
from polymux.perfmodel.tables import surface
from polymux.policy.serving.operating_point import (
    OperatingPoints,
    Point,
    adaptive_batch,
    batch_sizes,
    optimum,
    take,
)

MS = 1_000_000
DEVICE = ServingDevice(DeviceId("gpu:0"), 100, tuple(range(5, 101, 5)), "v100")


def _state(latency, slo_ms, name="m", rate=0.0):
    surfaces = {} if latency is None else {"v100": latency}
    return ModelState(ServedModel(ModelName(name), slo_ms * MS, surfaces, rate_per_s=rate, max_batch=8))


@pytest.mark.parametrize("knee", [5, 20, 30, 40, 60, 100])
def test_on_a_flat_surface_it_is_the_knee_with_the_largest_batch(knee):
    flat = FlatKneeSurface(knee, ((16, 10 * MS),))
    assert optimum(_state(flat, 50), DEVICE) == Point(knee, 16)


@pytest.mark.parametrize(
    ("name", "slo_ms", "units"),
    [("mobilenet", 25, 30), ("alexnet", 25, 30), ("resnet50", 50, 40), ("vgg19", 100, 50)],
)
def test_on_measured_surfaces_it_is_near_the_knee_of_the_paper(name, slo_ms, units):
    measured = surface("v100", name, max_batch=16)
    point = optimum(_state(measured, slo_ms), DEVICE)
    assert point.units == units
    assert measured.latency_ns(point.units, point.batch) <= slo_ms * MS / 2


def test_a_batch_that_takes_too_long_to_collect_is_not_aimed_at():
    flat = FlatKneeSurface(30, ((1, 2 * MS), (16, 10 * MS)))
    assert optimum(_state(flat, 50, rate=100), DEVICE).batch == 5
    assert optimum(_state(flat, 50, rate=10_000), DEVICE).batch == 16


def test_a_model_that_cannot_keep_half_its_slo_may_take_the_whole_and_then_whatever_it_takes():
    flat = FlatKneeSurface(30, ((16, 30 * MS),))
    assert optimum(_state(flat, 40), DEVICE) == Point(30, 16)
    assert optimum(_state(flat, 20), DEVICE) == Point(30, 16)


def test_a_model_without_a_surface_gets_thirty_percent_rounded_to_a_share():
    assert optimum(_state(None, 50), DEVICE) == Point(30, 8)
    cores = ServingDevice(DeviceId("cpu:0"), 2, (1, 2), "v100")
    assert optimum(_state(None, 50), cores) == Point(1, 8)


def test_the_adaptive_batch_keeps_half_the_slo_if_it_can():
    linear = FlatKneeSurface(30, ((1, 2 * MS), (16, 17 * MS)))
    assert adaptive_batch(_state(linear, 20), DEVICE, 100) == 9
    assert adaptive_batch(_state(linear, 3), DEVICE, 100) == 2
    assert adaptive_batch(_state(linear, 1), DEVICE, 100) == 16


def test_an_operator_may_give_points():
    points = OperatingPoints.parse("dstack", "a:40@4,org/b:1:20")
    flat = FlatKneeSurface(30, ((1, 2 * MS), (16, 17 * MS)))
    assert points.wanted(_state(flat, 100, "a"), DEVICE) == Point(40, 4)
    assert points.wanted(_state(flat, 100, "org/b:1"), DEVICE) == Point(20, 16)
    assert points.wanted(_state(flat, 100, "c"), DEVICE) == Point(30, 16)


@pytest.mark.parametrize("option", ["a", "a:", "a:x", "a:0", "a:30@", "a:30@x", ":30", "a:30,", "a:-5"])
def test_an_option_that_is_no_operating_point_is_an_error_that_quotes_it(option):
    if option == "a:30@":
        OperatingPoints.parse("dstack", option)  # a batch left open
        return
    with pytest.raises(InvalidRequest, match="operating point; give MODEL:UNITS"):
        OperatingPoints.parse("dstack", option)


def test_a_share_that_the_device_lacks_is_an_error():
    points = OperatingPoints.parse("dstack", "a:33")
    with pytest.raises(InvalidRequest, match="33 units were given for it, but device gpu:0 offers 5, 10"):
        points.wanted(_state(None, 50, "a"), DEVICE)


def test_a_batch_takes_whole_requests_and_at_least_one():
    state = _state(None, 50)
    for number, items in enumerate((3, 4, 2)):
        state.waiting.append(Request(RequestId(number), ModelName("m"), 0, 50, items))
        state.waiting_items += items
    assert take(state, 8) == (2, 7)
    assert take(state, 1) == (1, 3)
    state.waiting, state.waiting_items = deque(list(state.waiting)[:1]), 1
    assert take(state, 8) == (1, 1)


def test_very_large_batches_are_looked_at_in_steps():
    assert list(batch_sizes(5)) == [1, 2, 3, 4, 5]
    sizes = batch_sizes(1000)
    assert len(sizes) <= 65
    assert (sizes[0], sizes[-1]) == (1, 1000)
