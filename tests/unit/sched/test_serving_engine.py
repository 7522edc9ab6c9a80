"""The engine of requests: what waits, what is dispatched, what is refused, and what a policy may not do."""

from __future__ import annotations

import pytest

from polymux.core.errors import BadDecision, InvalidRequest
from polymux.core.ids import DeviceId
from polymux.core.serving.decision import Dispatch, RejectRequest, Start
from polymux.core.serving.event import (
    BatchEnded,
    InstanceReady,
    ModelAdded,
    ModelRemoved,
    RequestCancelled,
    RequestsArrived,
    ServingDeviceAdded,
    ServingDeviceLost,
    ServingTick,
)
from polymux.core.serving.model import ModelName, Request, RequestId, ServedModel, ServingDevice
from polymux.perfmodel.surface import TableSurface
from polymux.policy.serving.registry import load
from polymux.sched.serving.engine import ServingEngine

DEVICE = ServingDevice(DeviceId("cpu:0"), 2, (1, 2), "cpu", tuple(map(frozenset, ([0, 1], [0], [1]))))
SURFACE = TableSurface((1, 2), (1, 4), ((10, 30), (6, 16)))
MODEL = ServedModel(ModelName("m"), 100, {"cpu": SURFACE})


def _request(number, arrival=0, deadline=100, items=1, model="m"):
    return Request(RequestId(number), ModelName(model), arrival, deadline, items)


def _engine(policy=None, units=(1, 2)):
    engine = ServingEngine(policy or load("unscheduled"))
    engine.handle(ServingDeviceAdded(DEVICE), 0)
    engine.handle(ModelAdded(MODEL), 0)
    for count in units:
        engine.handle(InstanceReady(MODEL.name, DEVICE.id, count), 0)
    return engine


class Scripted:
    """Starts what the test says, once."""

    def __init__(self, *starts):
        self.starts = list(starts)

    def admit(self, view, request, now):
        return RejectRequest(request, now + 5, "full") if request.id == 99 else None

    def decide(self, view, event, now):
        if isinstance(event, ServingTick) and self.starts:
            return [self.starts.pop(0)]
        return []


def test_a_request_starts_at_once_where_something_is_free():
    (dispatch,) = _engine().handle(RequestsArrived([_request(1)]), 3)
    assert isinstance(dispatch, Dispatch)
    assert (dispatch.units, dispatch.block, dispatch.expected_ns) == (2, frozenset({0, 1}), 6)


def test_what_arrives_while_all_is_busy_starts_when_the_batch_ends():
    engine = _engine()
    (first,) = engine.handle(RequestsArrived([_request(1)]), 3)
    assert engine.handle(RequestsArrived([_request(2)]), 4) == []
    (second,) = engine.handle(BatchEnded(first.batch), 9)
    assert [request.id for request in second.requests] == [2]


def test_blocks_of_running_batches_never_overlap():
    engine = _engine(units=(1,))
    one, two = engine.handle(RequestsArrived([_request(1), _request(2), _request(3)]), 3)
    assert one.block | two.block == {0, 1}
    assert not one.block & two.block
    assert not engine.view.can_start


def test_waiting_requests_are_in_the_order_of_their_deadlines():
    engine = _engine(Scripted(Start(MODEL.name, DEVICE.id, 2, 3)))
    engine.handle(RequestsArrived([_request(1), _request(2, deadline=50), _request(3, deadline=100)]), 0)
    (dispatch,) = engine.handle(ServingTick(), 1)
    assert [request.id for request in dispatch.requests] == [2, 1, 3]


@pytest.mark.parametrize(
    ("start", "problem"),
    [
        (Start(ModelName("x"), DEVICE.id, 1, 1), "no such model"),
        (Start(MODEL.name, DeviceId("cpu:9"), 1, 1), "no such model"),
        (Start(MODEL.name, DEVICE.id, 3, 1), "3 units"),
        (Start(MODEL.name, DEVICE.id, 1, 1), "not ready"),
        (Start(MODEL.name, DEVICE.id, 2, 0), "0 requests"),
        (Start(MODEL.name, DEVICE.id, 2, 6), "6 requests; 5 wait"),
        (Start(MODEL.name, DEVICE.id, 2, 5), "5 items; a batch has at most 4"),
    ],
)
def test_a_bad_start_is_an_error_and_the_requests_go_on_waiting(start, problem):
    engine = _engine(Scripted(start), units=(2,))
    engine.handle(RequestsArrived([_request(number) for number in range(5)]), 0)
    with pytest.raises(BadDecision, match=problem):
        engine.handle(ServingTick(), 1)
    assert len(engine.view.models[MODEL.name].waiting) == 5
    assert engine.view.can_start


def test_a_policy_may_refuse_at_arrival_and_says_when_to_come_again():
    engine = _engine(Scripted())
    (refused,) = engine.handle(RequestsArrived([_request(99)]), 7)
    assert (refused.retry_at_ns, refused.reason) == (12, "full")
    assert engine.view.models[MODEL.name].refused == 1


def test_a_policy_that_raises_at_arrival_costs_that_request_only():
    class Broken(Scripted):
        def admit(self, view, request, now):
            if request.id == 1:
                raise ZeroDivisionError
            return

    engine = _engine(Broken())
    with pytest.raises(BadDecision, match="ZeroDivisionError") as caught:
        engine.handle(RequestsArrived([_request(1), _request(2)]), 0)
    assert [reject.request.id for reject in caught.value.decisions] == [1]
    assert [request.id for request in engine.view.models[MODEL.name].waiting] == [2]


def test_a_removed_model_rejects_what_waits_and_its_running_batch_frees_its_units():
    engine = _engine()
    (dispatch,) = engine.handle(RequestsArrived([_request(1), _request(2)]), 0)
    (rejected,) = engine.handle(ModelRemoved(MODEL.name), 1)
    assert rejected.request.id == 2
    engine.handle(BatchEnded(dispatch.batch), 2)
    assert engine.view.devices[DEVICE.id].free == 2


def test_a_lost_device_takes_no_batch_and_can_come_back():
    engine = _engine()
    engine.handle(ServingDeviceLost(DEVICE.id, "gone"), 0)
    assert engine.handle(RequestsArrived([_request(1)]), 1) == []
    engine.handle(ServingDeviceAdded(DEVICE), 2)
    (dispatch,) = engine.handle(InstanceReady(MODEL.name, DEVICE.id, 1), 3)
    assert dispatch.units == 1


def test_a_cancelled_request_is_never_dispatched():
    engine = _engine(Scripted(Start(MODEL.name, DEVICE.id, 2, 1)))
    engine.handle(RequestsArrived([_request(1), _request(2)]), 0)
    engine.handle(RequestCancelled(MODEL.name, RequestId(1)), 0)
    (dispatch,) = engine.handle(ServingTick(), 0)
    assert [request.id for request in dispatch.requests] == [2]


def test_a_clock_that_goes_back_counts_as_standing_still():
    engine = _engine()
    (dispatch,) = engine.handle(RequestsArrived([_request(1)]), 10)
    engine.handle(BatchEnded(dispatch.batch), 4)
    assert engine.view.models[MODEL.name].device_ns == 0


def test_batches_that_take_longer_than_expected_show_as_drift():
    engine = _engine()
    for number in range(20):
        now = 1000 * number
        (dispatch,) = engine.handle(RequestsArrived([_request(number, now, now + 100)]), now)
        engine.handle(BatchEnded(dispatch.batch), now + 60)
    assert engine.view.models[MODEL.name].drift == pytest.approx(10, rel=0.05)


def test_the_rate_of_arrivals_is_measured():
    engine = _engine()
    for number in range(300):
        now = number * 10_000_000
        engine.handle(RequestsArrived([_request(number, now, now + 100)]), now)
    assert engine.view.models[MODEL.name].rate_per_s == pytest.approx(100, rel=0.03)


def test_requests_given_in_advance_are_admitted_at_their_own_time():
    asked = []

    class Asked(Scripted):
        def admit(self, view, request, now):
            asked.append(now)

    engine = _engine(Asked(), units=())
    engine.handle(RequestsArrived([_request(1, 5), _request(2, 7), _request(3, 2)]), 4)
    assert asked == [5, 7, 7]


class Picky(Scripted):
    """Starts all that waits whenever it is asked; awaits the requests of which the test says so."""

    def __init__(self, *awaited):
        super().__init__()
        self.awaited = awaited

    @classmethod
    def make(cls, option):
        return cls()

    def awaits(self, view, request, now):
        return request.id in self.awaited

    def decide(self, view, event, now):
        waiting = len(view.models[MODEL.name].waiting) if view.models else 0
        return [Start(MODEL.name, DEVICE.id, 2, waiting)] if waiting and view.can_start else []


def test_arrivals_are_taken_up_to_the_one_that_the_policy_awaits():
    engine = _engine(Picky(2), units=(2,))
    requests = [_request(1, 5), _request(2, 7), _request(3, 7), _request(4, 8)]
    taken, (dispatch,) = engine.arrive(requests, 0, 4)
    assert taken == 3  # what comes at the same time is seen as well
    assert [request.id for request in dispatch.requests] == [1, 2, 3]
    assert engine.arrive(requests, 3, 4) == (4, [])
    assert [request.id for request in engine.view.models[MODEL.name].waiting] == [4]


def test_one_event_for_the_same_arrivals_comes_to_the_same():
    engine = _engine(Picky(2), units=(2,))
    (dispatch,) = engine.handle(RequestsArrived([_request(1, 5), _request(2, 7), _request(3, 7)]), 5)
    assert [request.id for request in dispatch.requests] == [1, 2, 3]
    assert engine.view.models[MODEL.name].running[dispatch.batch].start_ns == 7


def test_the_models_that_have_requests_are_known():
    engine = _engine(Scripted(Start(MODEL.name, DEVICE.id, 2, 2)))
    other = ServedModel(ModelName("other"), 100, {"cpu": SURFACE})
    engine.handle(ModelAdded(other), 0)
    engine.handle(RequestsArrived([_request(1, model="other"), _request(2), _request(3)]), 0)
    assert list(engine.view.waiting) == ["other", "m"]
    assert [state.model.name for state in engine.view.waiting_in_order()] == ["m", "other"]
    engine.handle(ServingTick(), 1)
    assert list(engine.view.waiting) == ["other"]
    engine.handle(RequestCancelled(other.name, RequestId(1)), 2)
    assert not engine.view.waiting


def test_events_that_cannot_be_are_errors_that_name_what_there_is():
    engine = _engine()
    for event, text in [
        (BatchEnded(5), "batch 5 does not run"),
        (ModelRemoved(ModelName("x")), "served are: m"),
        (InstanceReady(MODEL.name, DEVICE.id, 7), "no share of 7"),
        (ServingDeviceAdded(DEVICE), "there already"),
    ]:
        with pytest.raises(InvalidRequest, match=text):
            engine.handle(event, 0)
