"""What else runs shows in the next plans, and disturbed runs do not teach the models."""

from __future__ import annotations

from typing import Any

import pytest

from polymux.coexec import loads as module
from polymux.coexec.loads import PERSISTENT, Loads
from polymux.coexec.operation import ChunkKernel
from polymux.coexec.places import Place
from polymux.coexec.units import Unit

UNIT = Unit(Place("cpu:0/0", "cpu:0", "key", frozenset({0}), frozenset({0}), True), ChunkKernel("k"), "fp32")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(module, "monotonic", lambda: now[0])
    return now


def test_an_undisturbed_run_teaches_and_leaves_no_load(clock: list[float]) -> None:
    loads = Loads()
    assert loads.saw(UNIT, 1.05, 1.0)
    assert loads.now([UNIT]) == {}


def test_a_slow_run_counts_for_a_while_and_does_not_teach(clock: list[float]) -> None:
    loads = Loads()
    assert not loads.saw(UNIT, 2.0, 1.0)
    assert loads.now([UNIT])[UNIT.id].slowdown == pytest.approx(2.0)
    clock[0] += 2
    assert loads.now([UNIT]) == {}


def test_what_stays_slow_is_the_model_being_wrong(clock: list[float]) -> None:
    loads = Loads()
    assert [loads.saw(UNIT, 2.0, 1.0) for _ in range(PERSISTENT + 1)] == [False] * PERSISTENT + [True]
    assert loads.saw(UNIT, 0.5, 1.0), "faster than predicted is never a disturbance"


def test_calls_at_the_same_time_share_a_stream(clock: list[float]) -> None:
    loads = Loads()
    loads.begin([UNIT])
    assert loads.now([UNIT])[UNIT.id].slowdown == pytest.approx(2.0)
    loads.end([UNIT])
    assert loads.now([UNIT]) == {}


def status(busy_ns: int, mine_ns: int, now_ns: int, pending: int) -> dict[str, Any]:
    return {
        "server": {"now_ns": now_ns},
        "devices": [{"streams": [{"id": "cpu:0/0", "busy_ns": busy_ns}]}],
        "queues": [
            {"session": 1, "stream": "cpu:0/0", "busy_ns": mine_ns, "pending": 0},
            {"session": 2, "stream": "cpu:0/0", "busy_ns": busy_ns - mine_ns, "pending": pending},
        ],
    }


def test_other_applications_on_the_stream_are_seen(clock: list[float]) -> None:
    loads = Loads()
    loads.sampled(status(0, 0, 0, 1), "1", 0.001)
    loads.sampled(status(900, 0, 1000, 1), "1", 0.001)
    assert loads.now([UNIT])[UNIT.id].slowdown == pytest.approx(2.0), "one other takes turns with us"
    loads.sampled(status(900, 0, 2000, 0), "1", 0.001)
    assert loads.now([UNIT]) == {}


def test_the_server_is_asked_rarely(clock: list[float]) -> None:
    loads = Loads()
    assert loads.wants_sample(1.0)
    loads.sampled(status(0, 0, 0, 0), "1", 0.002)
    assert not loads.wants_sample(1.0)
    clock[0] += 10
    assert loads.wants_sample(1.0)
    assert not loads.wants_sample(0.1), "a short run is not worth it"


def test_what_is_slow_in_one_kind_of_runs_is_found_though_others_come_between(clock: list[float]) -> None:
    loads = Loads()
    taught = []
    for _ in range(PERSISTENT + 1):
        taught.append(loads.saw(UNIT, 1.2, 1.0, "beside others"))
        assert loads.saw(UNIT, 1.0, 1.0, "alone")
    assert taught == [False] * PERSISTENT + [True]
