"""A front end and its clients on the cores of a device, in virtual time: numbers that can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from polymux.core.errors import InvalidRequest
from polymux.core.ids import DeviceId
from polymux.core.serving.event import ServingDeviceLost
from polymux.core.serving.model import ModelName, ServedModel, ServingDevice
from polymux.perfmodel.surface import TableSurface
from polymux.policy.serving import registry
from polymux.sim.serving import (
    ClosedLoop,
    Host,
    HostWork,
    Load,
    Poisson,
    Pool,
    Scenario,
    ServingOutcome,
    Timestamps,
    simulate,
    simulate_cluster,
)
from polymux.sim.serving.arrivals import Arrivals

MS = 1_000_000
CPU = ServingDevice(DeviceId("cpu:0"), 2, (1, 2), "cpu")
SURFACE = TableSurface((1, 2), (1, 8), ((20 * MS, 40 * MS), (10 * MS, 20 * MS)))
FLAT = TableSurface((1,), (1, 8), ((4 * MS, 4 * MS),))
A = ModelName("a")
FREE = HostWork(0, 0, 0, 0)
WORK = HostWork(send_ns=1 * MS, receive_ns=2 * MS, reply_ns=MS // 2, take_ns=MS // 4)


def host(work: HostWork = WORK, **values: Any) -> Host:
    return Host(CPU.id, {A: work}, **{"timer_ns": 1, **values})


def run(
    arrivals: Arrivals, where: Host | None, policy: str = "unscheduled", slo_ms: int = 100, **values: Any
) -> ServingOutcome:
    loads = (Load(ServedModel(A, slo_ms * MS, {"cpu": SURFACE}), arrivals),)
    values.setdefault("duration_ns", 1000 * MS)
    return simulate(registry.load(policy), Scenario((CPU,), loads, host=where, **values))


def latencies_ms(outcome: ServingOutcome) -> list[float]:
    return [ns / MS for ns in outcome.models[A].latencies_ns.tolist()]


def test_a_request_alone_takes_the_time_of_its_batch_and_all_of_its_work() -> None:
    assert latencies_ms(run(Timestamps([0]), host())) == [1 + 2 + 10 + 0.5 + 0.25]


def test_handing_a_batch_over_takes_the_front_end_time_before_it_begins() -> None:
    work = replace(FREE, start_ns=2 * MS, further_ns=1 * MS)
    outcome = run(Timestamps([0, 0]), host(work), policy="fixed_batch=2")
    assert latencies_ms(outcome) == pytest.approx([2 + 1 + SURFACE.latency_ns(2, 2) / MS] * 2)
    assert outcome.spans[0].start_ns == 0


def test_work_that_takes_no_time_changes_nothing_but_the_time_kept_for_answers() -> None:
    arrivals = Poisson(60)
    plain, hosted = run(arrivals, None, seed=3), run(arrivals, host(FREE), seed=3)
    assert latencies_ms(plain) == latencies_ms(hosted)
    assert len(plain.spans) == len(hosted.spans) > 30


def test_a_thread_beside_a_batch_on_all_cores_takes_from_both() -> None:
    """The second request comes when the batch of the first has begun: 3 ms of work at half the speed take 6 ms."""
    rigid = run(Timestamps([0, 5 * MS]), host(pressed_speed=0.5, drag={A: 1.0}))
    first = 3 + 10 + 6 * 0.5 + 0.5 + 0.25  # the batch loses half of these 6 ms
    # the first one's answer goes out and is read while the second batch runs, which loses as much as that takes
    answer = (0.5 + 0.25) / 0.5
    assert latencies_ms(rigid)[0] == pytest.approx(16 + answer)
    assert first == 16.75
    assert latencies_ms(rigid)[1] == pytest.approx((16 - 5) + 10 + answer * 0.5 + 0.75)
    loose = run(Timestamps([0, 5 * MS]), host(pressed_speed=0.5, drag={A: 0.5}))
    assert latencies_ms(loose)[0] == pytest.approx(3 + 10 + 6 * 0.25 + answer)


def test_a_thread_with_a_core_of_its_own_runs_at_full_speed_and_slows_down_what_is_beside_it() -> None:
    narrow = replace(CPU, shares=(1,))
    loads = (Load(ServedModel(A, 100 * MS, {"cpu": SURFACE}), Timestamps([0, 5 * MS])),)
    where = host(HostWork(0, 4 * MS, 0, 0), beside={A: 0.25})
    outcome = simulate(registry.load("unscheduled"), Scenario((narrow,), loads, 1000 * MS, host=where))
    assert latencies_ms(outcome) == pytest.approx([4 + 20, 4 + 20 + 4 * (1 - 1 / 1.25)])


@pytest.mark.parametrize(("own", "busy", "expected"), [(2, 2, 0.5), (1, 2, 0.25), (1, 1, 0.0)])
def test_what_a_batch_loses_to_one_thread(own: int, busy: int, expected: float) -> None:
    """On all cores it waits for the one that is shared; one of two batches loses half of that on the average."""
    slowdown = host(pressed_speed=0.5, drag={A: 1.0}).slowdown(A, own, 1, busy, 2)
    assert 1 - 1 / slowdown == pytest.approx(expected)


def test_two_threads_on_the_cores_of_a_batch_that_waits_cost_no_more_than_one() -> None:
    rigid, loose = host(drag={A: 1.0}), host(drag={A: 0.5})
    assert rigid.slowdown(A, 2, 2, 2, 2) == rigid.slowdown(A, 2, 1, 2, 2) == pytest.approx(2)
    assert loose.slowdown(A, 2, 2, 2, 2) == pytest.approx(2)
    assert loose.slowdown(A, 2, 1, 2, 2) == pytest.approx(1 / 0.75)


def test_threads_share_what_cores_there_are() -> None:
    where = host(pressed_speed=0.5, beside_speed=0.8)
    assert where.thread_speed(2, 0, 2) == 1
    assert where.thread_speed(2, 0, 1) == 0.5
    assert where.thread_speed(1, 1, 2) == 0.8
    assert where.thread_speed(2, 1, 2) == pytest.approx((0.8 + 0.5) / 2)
    assert where.thread_speed(2, 1, 1) == 0.25


def test_the_end_of_a_batch_is_known_between_the_pieces_of_a_long_request() -> None:
    """The first of two requests waits until the second has been read, or a piece of it."""
    narrow = replace(CPU, units=1, shares=(1,))
    loads = (Load(ServedModel(A, 100 * MS, {"cpu": FLAT}), Timestamps([0, 17 * MS // 2])),)

    def longest(pieces: int) -> float:
        where = host(HostWork(0, 8 * MS, 0, 0, pieces), pressed_speed=1.0, drag={A: 0.0})
        scenario = Scenario((narrow,), loads, 1000 * MS, host=where)
        return max(latencies_ms(simulate(registry.load("unscheduled"), scenario)))

    assert longest(1) == 8.5 + 8  # the first batch ends after 12 ms
    # its end is known after 12.5 ms, and the answer written when the other one has had its turn again
    assert longest(2) == pytest.approx(12.5 + 4)
    assert longest(8) == pytest.approx(12.5 + 1)


def test_what_the_front_end_cannot_read_in_time_is_late_however_fast_batches_are() -> None:
    slow = host(HostWork(0, 30 * MS, 0, 0))
    outcome = run(Timestamps([0] * 20), slow, slo_ms=100)
    assert outcome.models[A].on_time < 6
    assert run(Timestamps([0] * 20), host(FREE), slo_ms=100).models[A].on_time == 10


@pytest.mark.parametrize("policy", sorted(registry.POLICIES))
def test_every_request_ends_in_exactly_one_way_under_every_policy(policy: str) -> None:
    for arrivals in (Poisson(120), ClosedLoop(6, 2 * MS)):
        outcome = run(arrivals, host(timer_ns=MS), policy=policy, slo_ms=60, duration_ns=2000 * MS)
        model = outcome.models[A]
        assert model.offered == model.refused + model.answered + model.failed + model.unfinished
        assert model.answered > 30


def test_the_same_seed_gives_the_same_outcome() -> None:
    first, again = (run(Poisson(80), host(timer_ns=MS), policy="spacetime", seed=5) for _ in range(2))
    assert latencies_ms(first) == latencies_ms(again)


def test_a_lost_device_fails_its_batches_whoever_else_computes_there() -> None:
    lost = ((15 * MS, ServingDeviceLost(CPU.id, "unplugged")),)
    model = run(Timestamps([0, 1 * MS, 12 * MS]), host(), events=lost).models[A]
    assert (model.answered, model.failed) == (0, 1)
    assert model.offered == 3 == model.failed + model.unfinished + model.refused


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: HostWork(-1, 0, 0, 0), "send_ns=-1"),
        (lambda: HostWork(0, 0, 0, 0, 0), "pieces=0"),
        (lambda: host(pressed_speed=0.0), "pressed_speed is 0.0"),
        (lambda: host(beside_speed=1.5), "beside_speed is 1.5"),
        (lambda: host(drag={A: -0.5}), "-0.5"),
        (lambda: host(timer_ns=0), "timer 0 ns"),
        (lambda: run(Poisson(1), replace(host(), device=DeviceId("cpu:7"))), "cpu:7"),
        (lambda: run(Poisson(1), replace(host(), work={})), "no work for model a"),
    ],
)
def test_numbers_that_cannot_be_are_refused(make: Any, told: str) -> None:
    with pytest.raises(InvalidRequest, match=told.replace("(", r"\(")):
        make()


def test_a_cluster_has_no_front_end_on_its_devices() -> None:
    loads = (Load(ServedModel(A, 100 * MS, {"cpu": SURFACE}), Poisson(10)),)
    scenario = Scenario((CPU,), loads, 100 * MS, host=host())
    with pytest.raises(InvalidRequest, match="leave out the host"):
        simulate_cluster(lambda: registry.load("unscheduled"), scenario, [Pool((CPU.id,), {A: 1.0})])
