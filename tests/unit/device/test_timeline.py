from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from polymux.device.timeline import Timeline


def test_a_free_resource_begins_at_once_and_a_busy_one_when_it_is_free() -> None:
    units = Timeline(3)
    assert units.reserve((0,), 100, 50) == 150
    assert units.reserve((1,), 110, 50) == 160
    assert units.reserve((0, 1), 120, 10) == 170
    assert units.reserve((2,), 120, 10) == 130
    assert units.reserve((0,), 500, 10) == 510


@given(st.lists(st.tuples(st.sets(st.integers(0, 3), min_size=1), st.integers(0, 50), st.integers(0, 50))))
def test_no_resource_serves_two_reservations_at_a_time(steps: list[tuple[set[int], int, int]]) -> None:
    timeline = Timeline(4)
    now_ns = 0
    served: dict[int, list[tuple[int, int]]] = {unit: [] for unit in range(4)}
    for resources, passed_ns, duration_ns in steps:
        now_ns += passed_ns
        end_ns = timeline.reserve(resources, now_ns, duration_ns)
        assert end_ns - duration_ns >= now_ns
        for resource in resources:
            served[resource].append((end_ns - duration_ns, end_ns))
    for spans in served.values():
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))
