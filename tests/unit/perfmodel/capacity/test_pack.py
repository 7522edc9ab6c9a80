"""Bin packing on latency surfaces: every request has a place, nothing is overfull, and cases worked out by hand."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polymux.core.errors import InvalidRequest
from polymux.perfmodel.capacity.bound import bound
from polymux.perfmodel.capacity.demand import Demand, DeviceKind
from polymux.perfmodel.capacity.pack import pack
from polymux.perfmodel.capacity.placement import Placement
from polymux.perfmodel.surface import TableSurface

MS = 1_000_000
GPU = DeviceKind("gpu", 100, (25, 50, 100))


def surface(first_ms: float, each_ms: float, knee: int = 50, most: int = 16) -> TableSurface:
    """A batch takes first + n x each at the knee and above, in inverse proportion below."""
    shares = (25, 50, 100)
    batches = tuple(range(1, most + 1))
    return TableSurface(
        shares,
        batches,
        tuple(
            tuple(round((first_ms + n * each_ms) * max(1.0, knee / share) * MS) for n in batches)
            for share in shares
        ),
    )


def demand(name: str, rate: float, slo_ms: float = 100, dispersion: float = 0.0, **values: object) -> Demand:
    given_surface = values.pop("surface", surface(5, 1))
    return Demand(name, rate, round(slo_ms * MS), {"gpu": given_surface}, dispersion=dispersion, **values)  # type: ignore[arg-type, dict-item]


def check(placement: Placement, demands: Sequence[Demand], kinds: Sequence[DeviceKind]) -> None:
    """Check what holds for every placement."""
    by_kind = {kind.name: kind for kind in kinds}
    of_model = {each.model: each for each in demands}
    rates: dict[str, float] = defaultdict(float)
    for device in placement.devices:
        kind = by_kind[device.kind]
        assert 0 < sum(lane.units for lane in device.lanes) <= kind.units
        if kind.memory_nbytes:
            assert sum(of_model[name].memory_nbytes for name in device.models) <= kind.memory_nbytes
        for lane in device.lanes:
            assert lane.units in kind.shares
            assert lane.replicas
            assert lane.busy <= 1 + 1e-6
            for replica in lane.replicas:
                asked = of_model[replica.model]
                rates[replica.model] += replica.rate_per_s
                took = asked.surfaces[kind.name].latency_ns(lane.units, replica.batch)
                assert replica.batch >= 1
                assert took <= lane.cycle_ns + 1
                assert lane.cycle_ns + took <= asked.slo_ns + 1
    for missing in placement.unplaced:
        rates[missing.model] += missing.rate_per_s
    for asked in demands:
        assert rates[asked.model] == pytest.approx(asked.rate_per_s, abs=1e-9)
        assert asked.model in rates
    for kind in kinds:
        assert kind.limit is None or placement.counts.get(kind.name, 0) <= kind.limit


def test_one_model_fills_lanes_at_the_batch_that_its_deadline_allows() -> None:
    # At 50 %: 5 + b ms; 2 L(b) <= 42 ms: b = 16, 16 / 21 ms = 761.9 per second and lane, so two devices carry 3047.
    asked = [demand("m", 3000, slo_ms=42)]
    found = pack(asked, [GPU], caution=0.0)
    check(found, asked, [GPU])
    assert found.counts == {"gpu": 2}
    assert pack([demand("m", 3100, slo_ms=42)], [GPU], caution=0.0).counts == {"gpu": 3}


def test_models_with_low_rates_take_turns_on_one_lane() -> None:
    asked = [demand(f"m{i}", 2.0) for i in range(20)]
    found = pack(asked, [GPU], caution=1.0)
    check(found, asked, [GPU])
    assert found.counts == {"gpu": 1}


def test_a_model_that_only_has_to_be_there_has_a_place() -> None:
    asked = [demand("idle", 0.0), demand("busy", 100.0)]
    found = pack(asked, [GPU])
    check(found, asked, [GPU])
    assert found.hosts().keys() == {"idle", "busy"}


def test_memory_makes_devices_necessary_that_their_units_do_not() -> None:
    kind = DeviceKind("gpu", 100, (25, 50, 100), memory_nbytes=1000)
    asked = [demand(f"m{i}", 1.0, memory_nbytes=400) for i in range(6)]
    found = pack(asked, [kind])
    check(found, asked, [kind])
    assert found.counts == {"gpu": 3}


def test_what_is_larger_than_every_memory_is_left_out_with_the_reason() -> None:
    kind = DeviceKind("gpu", 100, (100,), memory_nbytes=1000)
    found = pack([demand("m", 1.0, memory_nbytes=1001)], [kind])
    assert [missing.model for missing in found.unplaced] == ["m"]
    assert "1001 bytes" in found.unplaced[0].reason


def test_a_deadline_below_twice_the_shortest_run_is_left_out_with_the_reason() -> None:
    found = pack([demand("m", 1.0, slo_ms=11)], [GPU])
    assert found.unplaced[0].rate_per_s == 1.0
    assert "11 ms" in found.unplaced[0].reason


def test_a_limit_of_devices_is_kept_and_the_rest_told() -> None:
    kind = DeviceKind("gpu", 100, (25, 50, 100), limit=2)
    asked = [demand("m", 5000, slo_ms=42)]
    found = pack(asked, [kind], caution=0.0)
    check(found, asked, [kind])
    assert found.counts == {"gpu": 2}
    assert found.unplaced[0].rate_per_s > 1500
    assert "all 2 devices of kind gpu" in found.unplaced[0].reason


def test_the_cheaper_kind_is_taken_and_the_other_when_there_are_no_more() -> None:
    fast, slow = surface(5, 1), surface(10, 2)
    asked = [Demand("m", 3000, 84 * MS, {"fast": fast, "slow": slow}, dispersion=0.0)]
    dear = [DeviceKind("fast", 100, (50, 100), cost=10), DeviceKind("slow", 100, (50, 100))]
    assert set(pack(asked, dear, caution=0.0).counts) == {"slow"}
    even = [DeviceKind("fast", 100, (50, 100), limit=1), DeviceKind("slow", 100, (50, 100))]
    found = pack(asked, even, caution=0.0)
    check(found, asked, even)
    assert found.counts["fast"] == 1
    assert found.counts["slow"] >= 1


def test_a_model_runs_only_on_kinds_for_which_it_has_a_surface() -> None:
    kinds = [DeviceKind("gpu", 100, (50, 100), cost=100), DeviceKind("other", 100, (50, 100))]
    found = pack([demand("m", 10)], kinds)
    assert set(found.counts) == {"gpu"}
    nowhere = pack([demand("m", 10)], [kinds[1]])
    assert "no surface for any of: other" in nowhere.unplaced[0].reason


def test_caution_and_headroom_never_take_fewer_devices() -> None:
    asked = [demand(f"m{i}", 150, dispersion=1.0) for i in range(12)]
    counts = [len(pack(asked, [GPU], caution=caution).devices) for caution in (0.0, 1.0, 2.0, 4.0)]
    assert counts == sorted(counts)
    assert len(pack(asked, [GPU], headroom={each.model: 2.0 for each in asked}).devices) > counts[1]


def test_the_same_demands_have_the_same_placement() -> None:
    asked = [demand(f"m{i}", 10.0 * i, slo_ms=60 + i, dispersion=1.0) for i in range(15)]
    assert pack(asked, [GPU]) == pack(asked, [GPU])


@pytest.mark.parametrize(
    ("demands", "kinds", "what"),
    [
        ([demand("m", 1)], [], "at least one kind"),
        ([demand("m", 1), demand("m", 2)], [GPU], "model 'm' is given twice"),
        ([demand("m", 1)], [GPU, GPU], "kind of device 'gpu' is given twice"),
    ],
)
def test_what_cannot_be_packed_is_told(demands: list[Demand], kinds: list[DeviceKind], what: str) -> None:
    with pytest.raises(InvalidRequest, match=what):
        pack(demands, kinds)


@pytest.mark.parametrize(
    "values",
    [{"rate_per_s": -1.0}, {"rate_per_s": float("nan")}, {"slo_ns": 0}, {"items": 0}, {"dispersion": -1.0}],
)
def test_a_demand_that_cannot_be_is_told_with_its_value(values: dict[str, float]) -> None:
    good: dict[str, float] = {"rate_per_s": 1.0, "slo_ns": MS}
    with pytest.raises(InvalidRequest, match=f"{next(iter(values))} is"):
        Demand("m", surfaces={}, **(good | values))  # type: ignore[arg-type]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.floats(0, 3000), st.floats(5, 400), st.floats(0.1, 30), st.floats(0.0, 4),
            st.sampled_from((25, 50, 100)),
            st.integers(0, 700), st.sampled_from((0.0, 1.0, 10.0)), st.integers(1, 20),
        ),
        min_size=1,
        max_size=8,
    ),
    st.floats(0, 3),
    st.sampled_from((None, 0, 1, 3)),
    st.sampled_from((0, 1000)),
)  # fmt: skip
def test_a_placement_of_anything_loses_no_request_and_overfills_nothing(
    raw: list[tuple[float, float, float, float, int, int, float, int]],
    caution: float,
    limit: int | None,
    memory: int,
) -> None:
    kind = DeviceKind("gpu", 100, (25, 50, 100), memory_nbytes=memory, limit=limit)
    asked = [
        Demand(f"m{i}", rate, round(slo * MS), {"gpu": surface(first, each, knee)}, items, dispersion, size)
        for i, (rate, slo, first, each, knee, size, dispersion, items) in enumerate(raw)
    ]
    found = pack(asked, [kind], caution=caution)
    check(found, asked, [kind])
    if not found.unplaced:
        assert len(found.devices) >= bound(asked, [kind]).least - 1e-6


def test_the_bound_is_what_is_worked_out_by_hand() -> None:
    # 5 + 16 ms for 16 at 50 %: 0.65625 device-ms each; within 12 ms only 7 of them: 0.857 each.
    kind = DeviceKind("gpu", 100, (25, 50, 100), memory_nbytes=1000)
    asked = [demand("m", 2000, slo_ms=12, memory_nbytes=2500)]
    found = bound(asked, [kind])
    assert found.compute == pytest.approx(2 * 0.65625)
    assert found.deadlines == pytest.approx(2 * 0.5 * 12 / 7)
    assert found.memory == pytest.approx(2.5)
    assert found.least == found.memory
    assert found.devices([kind]) == 3
    assert bound(asked, [kind], attainment=0.5).compute == pytest.approx(0.65625)
