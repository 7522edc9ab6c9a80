"""Which shares are asked for, and which are used meanwhile."""

from __future__ import annotations

import pytest

from polymux.core.ids import DeviceId
from polymux.core.serving.decision import Dispatch, PrepareInstance
from polymux.core.serving.event import (
    InstanceFailed,
    InstanceReady,
    ModelAdded,
    ModelRemoved,
    RequestsArrived,
    ServingDeviceAdded,
    ServingDeviceLost,
)
from polymux.core.serving.model import ModelName, Request, RequestId, ServedModel, ServingDevice
from polymux.perfmodel.flat_knee import FlatKneeSurface
from polymux.policy.serving.registry import load
from polymux.sched.serving.engine import ServingEngine

MS = 1_000_000
DEVICE = ServingDevice(DeviceId("gpu:0"), 100, (20, 40, 60, 100), "gpu")
MODEL = ServedModel(ModelName("m"), 100 * MS, {"gpu": FlatKneeSurface(40, ((16, 10 * MS),))})
ON_THE_KNEE = ["dstack", "max_throughput", "max_min_fair"]


def _asked(decisions):
    return [decision.units for decision in decisions if isinstance(decision, PrepareInstance)]


def _engine(policy):
    engine = ServingEngine(load(policy))
    assert _asked(engine.handle(ServingDeviceAdded(DEVICE), 0)) == []
    return engine, _asked(engine.handle(ModelAdded(MODEL), 0))


@pytest.mark.parametrize(
    ("policy", "units"),
    [*((policy, 40) for policy in ON_THE_KNEE), ("temporal", 100), ("fixed_batch=1", 100), ("gslice", 100)],
)
def test_a_share_is_asked_for_once_and_used_when_it_is_ready(policy, units):
    engine, asked = _engine(policy)
    assert asked == [units]
    assert _asked(engine.handle(RequestsArrived([Request(RequestId(1), MODEL.name, 0, 100 * MS)]), 0)) == []
    (dispatch,) = engine.handle(InstanceReady(MODEL.name, DEVICE.id, units), 1)
    assert isinstance(dispatch, Dispatch)
    assert dispatch.units == units


@pytest.mark.parametrize("policy", ON_THE_KNEE)
def test_the_nearest_ready_share_serves_until_the_wanted_one_is_ready(policy):
    engine, _ = _engine(policy)
    engine.handle(InstanceReady(MODEL.name, DEVICE.id, 100), 0)
    engine.handle(InstanceReady(MODEL.name, DEVICE.id, 20), 0)
    (dispatch,) = engine.handle(RequestsArrived([Request(RequestId(1), MODEL.name, 1, 100 * MS)]), 1)
    assert dispatch.units == 20


@pytest.mark.parametrize("policy", ON_THE_KNEE)
def test_after_a_failure_the_next_best_share_is_asked_for(policy):
    engine, _ = _engine(policy)
    assert _asked(engine.handle(InstanceFailed(MODEL.name, DEVICE.id, 40, "no memory"), 1)) == [20]
    assert _asked(engine.handle(InstanceFailed(MODEL.name, DEVICE.id, 20, "no memory"), 2)) == [60]
    assert _asked(engine.handle(InstanceReady(MODEL.name, DEVICE.id, 60), 3)) == []


@pytest.mark.parametrize("policy", ON_THE_KNEE)
def test_what_is_gone_and_comes_back_is_asked_for_again(policy):
    engine, _ = _engine(policy)
    engine.handle(ServingDeviceLost(DEVICE.id, "unplugged"), 1)
    assert _asked(engine.handle(ServingDeviceAdded(DEVICE), 2)) == [40]
    engine.handle(ModelRemoved(MODEL.name), 3)
    assert _asked(engine.handle(ModelAdded(MODEL), 4)) == [40]
