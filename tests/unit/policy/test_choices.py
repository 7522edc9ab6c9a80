"""Which stream each policy picks."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from polymux.core.decision import Bind, Reject
from polymux.core.errors import InvalidRequest
from polymux.core.event import StreamLoad, Tick
from polymux.core.ids import DeviceId
from polymux.core.snapshot import Snapshot, StreamView
from polymux.policy.least_loaded import LeastLoaded
from polymux.policy.pinned import Pinned
from polymux.policy.round_robin import RoundRobin
from tests.unit.policy.snapshots import device, queue, snapshot, stream


def of(streams: Sequence[StreamView]) -> Snapshot:
    return Snapshot({}, {view.id: view for view in streams}, {})


def least(*streams: StreamView) -> str:
    chosen, reason = LeastLoaded().choose(queue(), streams, of(streams))
    assert chosen.id in reason
    return chosen.id


def test_round_robin_picks_the_stream_whose_turn_is_longest_ago() -> None:
    streams = [stream("a/0", 0, turn=5), stream("b/0", 1, turn=3), stream("a/1", 2, turn=4)]
    assert RoundRobin().choose(queue(), streams, of(streams))[0].id == "b/0"


def test_round_robin_starts_in_the_fixed_order_of_streams() -> None:
    streams = [stream("b/0", 1), stream("a/0", 0)]
    assert RoundRobin().choose(queue(), streams, of(streams))[0].id == "a/0"


def test_without_reports_the_least_loaded_stream_has_the_fewest_queues() -> None:
    assert least(stream("a/0", 0, queues=2), stream("b/0", 1, queues=1)) == "b/0"


def test_between_equal_streams_the_turn_and_then_the_order_decide() -> None:
    assert least(stream("a/0", 0, turn=2), stream("b/0", 1, turn=1)) == "b/0"
    assert least(stream("b/0", 1), stream("a/0", 0)) == "a/0"


def test_an_idle_stream_with_many_queues_is_less_loaded_than_a_busy_one_with_few() -> None:
    idle = stream("a/0", 0, queues=20, load=StreamLoad(0, 10, 20))
    busy = stream("b/0", 1, queues=1, load=StreamLoad(0, 10**9, 1))
    assert least(idle, busy) == "a/0"


def test_between_saturated_streams_the_backlog_decides() -> None:
    long = stream("a/0", 0, queues=1, load=StreamLoad(500, 10**9, 1))
    short = stream("b/0", 1, queues=1, load=StreamLoad(2, 10**9, 1))
    assert least(long, short) == "b/0"


def test_queues_bound_since_the_report_count_as_average_ones() -> None:
    # four queues made the load; a stream that got three since has about as much as three of them
    idle = stream("a/0", 0, queues=3, load=StreamLoad(0, 0, 0))
    busy = stream("b/0", 1, queues=4, load=StreamLoad(8, 4000, 4))
    assert least(idle, busy) == "a/0"
    idle = stream("a/0", 0, queues=5, load=StreamLoad(0, 0, 0))
    assert least(idle, busy) == "b/0"


def test_queues_released_since_the_report_count_too() -> None:
    left = stream("a/0", 0, queues=0, load=StreamLoad(8, 4000, 4))
    other = stream("b/0", 1, queues=3, load=StreamLoad(6, 3000, 3))
    assert least(left, other) == "a/0"


def placed(policy: Pinned, *devices: object, **fields: object) -> object:
    (decision,) = policy.decide(snapshot(devices, [queue(**fields)]), Tick(), 0)
    return decision


def test_pinned_without_a_device_takes_the_first_that_works() -> None:
    decision = placed(Pinned(), device("cpu:0", lost="gone"), device("cpu:1"), device("opencl:0"))
    assert isinstance(decision, Bind)
    assert decision.stream == "cpu:1/0"


def test_pinned_takes_the_operators_device_and_falls_back_while_it_is_lost() -> None:
    policy = Pinned.make("opencl:0")
    decision = placed(policy, device("cpu:0"), device("opencl:0"))
    assert isinstance(decision, Bind)
    assert decision.stream == "opencl:0/0"
    decision = placed(policy, device("cpu:0"), device("opencl:0", lost="gone"))
    assert isinstance(decision, Bind)
    assert decision.stream == "cpu:0/0"


def test_the_pin_of_a_queue_is_stronger_than_that_of_the_operator() -> None:
    decision = placed(Pinned.make("opencl:0"), device("cpu:0"), device("opencl:0"), pinned=DeviceId("cpu:0"))
    assert isinstance(decision, Bind)
    assert decision.stream == "cpu:0/0"


def test_pinned_refuses_queues_when_its_device_was_never_there() -> None:
    decision = placed(Pinned.make("gpu:9"), device("cpu:0"))
    assert isinstance(decision, Reject)
    for part in ("'gpu:9'", "devices: cpu:0", "--policy pinned="):
        assert part in decision.message


def test_pinned_spreads_over_the_streams_of_its_device() -> None:
    waiting = [queue(f"1.{i}") for i in range(4)]
    decisions = Pinned().decide(snapshot([device("cpu:0", 2)], waiting), Tick(), 0)
    assert [d.stream for d in decisions if isinstance(d, Bind)] == [
        "cpu:0/0",
        "cpu:0/1",
        "cpu:0/0",
        "cpu:0/1",
    ]


@pytest.mark.parametrize("policy", [RoundRobin, LeastLoaded])
def test_an_option_that_a_policy_does_not_take_is_refused(policy: type[RoundRobin]) -> None:
    with pytest.raises(InvalidRequest, match="takes no option, given 'cpu:0'"):
        policy.make("cpu:0")
