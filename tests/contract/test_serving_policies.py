"""Every policy for requests that is registered, under any order of events: what a driver of the engine relies on."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from polymux.core.ids import DeviceId
from polymux.core.serving.model import ModelName, ServedModel, ServingDevice
from polymux.perfmodel.flat_knee import FlatKneeSurface
from polymux.perfmodel.surface import TableSurface
from polymux.policy.serving.registry import names
from tests.contract.serving_driver import MS, ServingDriver

EXAMPLES = int(os.environ.get("POLYMUX_EXAMPLES", "25"))
"""Runs of each policy; many more find what is rare."""
CORES = tuple(map(frozenset, ([0, 1], [0], [1])))
DEVICES = {
    "gpu:0": ServingDevice(DeviceId("gpu:0"), 100, tuple(range(10, 101, 10)), "gpu"),
    "gpu:1": ServingDevice(DeviceId("gpu:1"), 100, (20, 50, 100), "gpu"),
    "cpu:0": ServingDevice(DeviceId("cpu:0"), 2, (1, 2), "cpu", CORES),
}
MODELS = ("m1", "m2", "m3", "m4")
devices = st.sampled_from(sorted(DEVICES))
models = st.sampled_from(MODELS)
surfaces = st.sampled_from(
    [
        {},
        {"gpu": FlatKneeSurface(30, ((1, 2 * MS), (8, 9 * MS)))},
        {"gpu": FlatKneeSurface(60, ((1, 30 * MS),)), "cpu": FlatKneeSurface(2, ((4, 20 * MS),))},
        {
            "gpu": TableSurface((10, 100), (1, 16), ((9 * MS, 40 * MS), (2 * MS, 8 * MS))),
            "cpu": TableSurface((1, 2), (1, 4), ((10 * MS, 30 * MS), (6 * MS, 16 * MS))),
        },
    ]
)


class AnyOrderOfEvents(RuleBasedStateMachine):
    """Clients, devices and an operator who do what they like; the `ServingDriver` checks every decision."""

    def __init__(self, policy: str) -> None:
        super().__init__()
        self.driver = ServingDriver(policy)

    def act(self, after_ns: int) -> None:
        self.driver.pass_time(after_ns)
        self.driver.check_not_stuck()

    @rule(name=devices)
    def add_device(self, name: str) -> None:
        if name not in self.driver.devices:
            self.driver.add_device(DEVICES[name])
            for model in self.driver.models:
                self.driver.make_ready(model, DeviceId(name), DEVICES[name].shares[-1])

    @precondition(lambda self: self.driver.devices)
    @rule(data=st.data(), ends_now=st.booleans())
    def lose_device(self, data: st.DataObject, ends_now: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.driver.devices)))
        self.driver.lose_device(name, ends_now=ends_now)

    @precondition(lambda self: self.driver.orphans)
    @rule(data=st.data())
    def end_orphan(self, data: st.DataObject) -> None:
        self.driver.end_orphan(data.draw(st.sampled_from(sorted(self.driver.orphans))))

    @rule(
        name=models,
        slo_ms=st.sampled_from([5, 25, 100]),
        found=surfaces,
        weight=st.sampled_from([1, 100, 300]),
        priority=st.integers(0, 1),
        rate=st.sampled_from([0.0, 10.0, 1000.0]),
        ready=st.booleans(),
    )
    def add_or_change_model(
        self,
        name: str,
        slo_ms: int,
        found: dict[str, FlatKneeSurface | TableSurface],
        weight: int,
        priority: int,
        rate: float,
        ready: bool,
    ) -> None:
        self.driver.add_model(
            ServedModel(ModelName(name), slo_ms * MS, found, weight, priority, rate, max_batch=6)
        )
        for device_id, device in self.driver.devices.items() if ready else ():
            for units in device.shares:
                self.driver.make_ready(ModelName(name), device_id, units)

    @precondition(lambda self: self.driver.models)
    @rule(data=st.data())
    def remove_model(self, data: st.DataObject) -> None:
        self.driver.remove_model(data.draw(st.sampled_from(sorted(self.driver.models))))

    @precondition(lambda self: self.driver.models and self.driver.devices)
    @rule(data=st.data())
    def offer_instance(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.driver.models)))
        device = self.driver.devices[data.draw(st.sampled_from(sorted(self.driver.devices)))]
        self.driver.make_ready(name, device.id, data.draw(st.sampled_from(device.shares)))

    @precondition(lambda self: self.driver.preparing)
    @rule(data=st.data(), works=st.booleans(), after_ns=st.integers(0, 50 * MS))
    def prepare(self, data: st.DataObject, works: bool, after_ns: int) -> None:
        wish = data.draw(st.sampled_from(sorted(self.driver.preparing)))
        self.driver.pass_time(after_ns)
        if wish in self.driver.preparing:
            (self.driver.make_ready if works else self.driver.fail_to_prepare)(*wish)

    @precondition(lambda self: self.driver.models)
    @rule(
        data=st.data(),
        count=st.sampled_from([1, 1, 2, 5, 40]),
        items=st.sampled_from([1, 1, 1, 3, 9]),
        slo_ns=st.sampled_from([1, 3 * MS, 20 * MS, 60 * MS, 10_000 * MS]),
        after_ns=st.integers(0, 30 * MS),
    )
    def arrive(self, data: st.DataObject, count: int, items: int, slo_ns: int, after_ns: int) -> None:
        self.act(after_ns)
        name = data.draw(st.sampled_from(sorted(self.driver.models)))
        self.driver.arrive(name, count, slo_ns, items)

    @precondition(lambda self: self.driver.waiting)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.driver.cancel(data.draw(st.sampled_from(sorted(self.driver.waiting))))

    @precondition(lambda self: self.driver.running)
    @rule(
        data=st.data(),
        failed=st.booleans(),
        part=st.sampled_from([0.0, 0.5, 1.0, 1.0, 1.1, 10.0]),
    )
    def end(self, data: st.DataObject, failed: bool, part: float) -> None:
        batch = data.draw(st.sampled_from(sorted(self.driver.running)))
        self.driver.pass_time(round(part * (self.driver.running[batch].expected_ns or 5 * MS)))
        if batch in self.driver.running:
            self.driver.end(batch, failed=failed)
        self.driver.check_not_stuck()

    @rule(after_ns=st.sampled_from([0, 1, MS, 70 * MS, 5000 * MS]))
    def wait(self, after_ns: int) -> None:
        self.act(after_ns)

    @rule(by_ns=st.sampled_from([1, MS, 500 * MS]))
    def turn_the_clock_back(self, by_ns: int) -> None:
        self.driver.now -= by_ns

    def teardown(self) -> None:
        self.driver.settle()
        self.driver.check_replay()


@pytest.mark.parametrize("policy", names())
def test_a_driver_can_rely_on_every_policy_in_any_order_of_events(policy: str) -> None:
    run_state_machine_as_test(
        lambda: AnyOrderOfEvents(policy),
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )


def _busy(policy: str, device: str = "gpu:0") -> ServingDriver:
    driver = ServingDriver(policy)
    driver.add_device(DEVICES[device])
    kind = DEVICES[device].kind
    for index, name in enumerate(MODELS):
        knee = 10 + 20 * index if kind == "gpu" else 1
        surface = FlatKneeSurface(knee, ((1, 2 * MS), (8, 9 * MS)))
        driver.add_model(ServedModel(ModelName(name), 100 * MS, {kind: surface}))
        for units in DEVICES[device].shares:
            driver.make_ready(ModelName(name), DeviceId(device), units)
    return driver


@pytest.mark.parametrize("device", ["gpu:0", "cpu:0"])
@pytest.mark.parametrize("policy", names())
def test_a_single_request_on_an_idle_machine_is_answered_in_time(policy: str, device: str) -> None:
    driver = _busy(policy, device)
    for name in MODELS:
        (request,) = driver.arrive(ModelName(name), 1, 100 * MS)
        driver.settle()
        assert request.id in driver.answered
        assert driver.now <= request.deadline_ns
        driver.pass_time(1000 * MS)


@pytest.mark.parametrize("policy", names())
def test_a_burst_of_requests_is_answered_or_refused_whole(policy: str) -> None:
    driver = _busy(policy)
    for name in MODELS:
        driver.arrive(ModelName(name), 200, 100 * MS)
    driver.settle(steps=20_000)
    assert len(driver.answered | driver.refused) == 800


@pytest.mark.parametrize("policy", names())
def test_an_idle_machine_is_left_alone(policy: str) -> None:
    driver = _busy(policy)
    driver.arrive(ModelName("m1"), 3, 100 * MS)
    driver.settle()
    driver.pass_time(10_000 * MS)
    steps = len(driver.log)
    driver.pass_time(1_000_000 * MS)
    assert len(driver.log) == steps, "it wakes up although nothing waits"


@pytest.mark.parametrize("policy", names())
def test_a_clock_that_goes_back_loses_nothing(policy: str) -> None:
    driver = _busy(policy)
    driver.now = 500 * MS
    driver.arrive(ModelName("m1"), 20, 100 * MS)
    driver.now = 400 * MS
    driver.arrive(ModelName("m2"), 20, 100 * MS)
    driver.now = 600 * MS
    driver.settle()
    assert len(driver.answered | driver.refused) == 40


@pytest.mark.parametrize("policy", names())
def test_what_waits_when_a_device_is_lost_runs_when_it_is_back(policy: str) -> None:
    driver = _busy(policy)
    for name in MODELS:
        driver.arrive(ModelName(name), 20, 10_000 * MS)
    assert driver.running
    driver.lose_device(DeviceId("gpu:0"))
    driver.pass_time(100 * MS)
    driver.add_device(DEVICES["gpu:0"])
    for name in MODELS:
        driver.make_ready(ModelName(name), DeviceId("gpu:0"), 100)
    driver.settle()
    assert len(driver.answered | driver.refused) == 80


@pytest.mark.parametrize("policy", names())
def test_a_device_that_is_back_is_used_before_its_old_batches_are_told_as_failed(policy: str) -> None:
    driver = _busy(policy)
    for name in MODELS:
        driver.arrive(ModelName(name), 20, 10_000 * MS)
    assert driver.running
    driver.lose_device(DeviceId("gpu:0"), ends_now=False)
    driver.pass_time(100 * MS)
    driver.add_device(DEVICES["gpu:0"])
    for name in MODELS:
        driver.make_ready(ModelName(name), DeviceId("gpu:0"), 100)
    driver.settle()
    for batch in sorted(driver.orphans):
        driver.end_orphan(batch)
    driver.settle()
    assert len(driver.answered | driver.refused) == 80


@pytest.mark.parametrize("items", [8, 20])
@pytest.mark.parametrize("policy", names())
def test_a_request_as_large_as_a_batch_or_larger_is_answered(policy: str, items: int) -> None:
    driver = _busy(policy)
    (request,) = driver.arrive(ModelName("m1"), 1, 1000 * MS, items=items)
    driver.settle()
    assert request.id in driver.answered
