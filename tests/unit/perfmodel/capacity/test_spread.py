"""Demands spread over a given number of devices: evenly, within the memory, none left out."""

from __future__ import annotations

import pytest

from polymux.core.errors import InvalidRequest
from polymux.perfmodel.capacity.demand import Demand, DeviceKind
from polymux.perfmodel.capacity.spread import spread, undivided
from polymux.perfmodel.surface import TableSurface

MS = 1_000_000
SLOW = TableSurface((50, 100), (1, 10), ((20 * MS, 40 * MS), (10 * MS, 20 * MS)))
FAST = TableSurface((50, 100), (1, 10), ((10 * MS, 20 * MS), (5 * MS, 10 * MS)))


def demand(name: str, rate: float, memory: int = 0) -> Demand:
    return Demand(name, rate, 200 * MS, {"slow": SLOW, "fast": FAST}, memory_nbytes=memory)


def kind(name: str, count: int, memory: int = 0) -> DeviceKind:
    return DeviceKind(name, 100, (50, 100), memory, count)


def test_a_large_demand_is_divided_and_small_ones_fill_up() -> None:
    found = spread([demand("large", 1000), *(demand(f"m{i}", 100) for i in range(10))], [kind("slow", 4)])
    totals = [sum(device.rates_per_s.values()) for device in found]
    assert all(total == pytest.approx(500, rel=0.2) for total in totals)
    assert [device.rates_per_s["large"] for device in found] == [250] * 4
    assert sum(len(device.rates_per_s) for device in found) == 14


def test_faster_devices_get_more() -> None:
    found = spread([demand(f"m{i}", 10) for i in range(90)], [kind("slow", 2), kind("fast", 2)])
    counts = [len(device.rates_per_s) for device in found]
    assert counts == pytest.approx([15, 15, 30, 30], abs=1)


def test_models_that_get_no_requests_are_placed_as_well() -> None:
    found = spread([demand(f"m{i}", 0) for i in range(6)], [kind("slow", 3)])
    assert [len(device.rates_per_s) for device in found] == [2, 2, 2]


def test_memory_is_never_exceeded_and_too_little_is_told() -> None:
    asked = [demand(f"m{i}", 10.0 * i, memory=30) for i in range(6)]
    found = spread(asked, [kind("slow", 2, memory=100)])
    assert [len(device.rates_per_s) for device in found] == [3, 3]
    with pytest.raises(InvalidRequest, match="none of the 2 devices has 30 bytes"):
        spread([*asked, demand("more", 1, memory=30)], [kind("slow", 2, memory=100)])


def test_what_cannot_be_spread_is_told() -> None:
    with pytest.raises(InvalidRequest, match="no surface for any of the devices .other."):
        spread([demand("m", 1)], [kind("other", 2)])
    with pytest.raises(InvalidRequest, match="at least one device"):
        spread([demand("m", 1)], [kind("slow", 0)])


def test_undivided_devices_say_what_part_of_their_time_each_model_takes() -> None:
    found = undivided([demand("large", 300), demand("idle", 0)], kind("slow", 1), 2)
    assert [device.free for device in found] == [True, True]
    assert {name for device in found for name in device.models} == {"large", "idle"}
    assert sum(device.rate_per_s("large") for device in found) == pytest.approx(300)
    # A batch of ten takes 20 ms of the whole device or 40 ms of a half of it: 2 ms of the device's time each.
    assert sum(device.busy for device in found) == pytest.approx(300 * 0.002)
    assert {replica.batch for device in found for _, replica in device.replicas()} == {10}
