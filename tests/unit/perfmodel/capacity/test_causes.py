"""Why a placement has as many devices as it has."""

from __future__ import annotations

import pytest

from polymux.perfmodel.capacity.causes import causes
from polymux.perfmodel.capacity.demand import Demand, DeviceKind
from polymux.perfmodel.capacity.pack import pack
from polymux.perfmodel.surface import TableSurface

MS = 1_000_000
SURFACE = TableSurface((50, 100), (1, 16), ((10 * MS, 40 * MS), (6 * MS, 24 * MS)))


def demand(name: str, rate: float, slo_ms: int = 200, dispersion: float = 0.0, memory: int = 1) -> Demand:
    return Demand(name, rate, slo_ms * MS, {"gpu": SURFACE}, 1, dispersion, memory)


def kind(memory: int = 0) -> DeviceKind:
    return DeviceKind("gpu", 100, (50, 100), memory)


def largest(
    demands: list[Demand], kinds: list[DeviceKind], caution: float = 1.0
) -> tuple[str, tuple[str, ...]]:
    placement = pack(demands, kinds, caution=caution)
    found = causes(placement, demands, kinds, caution=caution, headroom={})
    assert sum(cause.cost for cause in found) == pytest.approx(len(placement.devices))
    assert [cause.cost for cause in found] == sorted((cause.cost for cause in found), reverse=True)
    assert found[-1].cost >= 0
    return found[0].name, found[0].models


def test_much_work_with_long_deadlines_is_compute() -> None:
    demands = [demand("large", 8000), demand("small", 500)]
    assert largest(demands, [kind()]) == ("compute", ("large", "small"))


def test_deadlines_that_leave_no_time_for_a_batch() -> None:
    demands = [demand("tight", 1500, slo_ms=14), demand("loose", 100)]
    name, models = largest(demands, [kind()])
    assert name == "deadlines"
    assert models[0] == "tight"


def test_weights_that_do_not_fit_beside_each_other() -> None:
    demands = [demand(f"m{i}", 1, memory=60 + i) for i in range(8)]
    assert largest(demands, [kind(memory=100)]) == ("memory", ("m7", "m6", "m5"))


def test_arrivals_in_bursts() -> None:
    demands = [demand(f"m{i}", 150, slo_ms=100, dispersion=50.0 + i) for i in range(6)]
    name, models = largest(demands, [kind()], caution=3.0)
    assert name == "bursts"
    assert models[0] == "m5"


def test_one_device_that_has_little_to_do() -> None:
    assert largest([demand("m", 2)], [kind()])[0] == "granularity"
