"""Which streams can work at the same time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from polymux.coexec.places import Place, combinations, places_of


def place(stream: str, units: set[int], cores: set[int] | None = None) -> Place:
    device = stream.partition("/")[0]
    return Place(stream, device, device, frozenset(units), frozenset(cores or ()), True)


def names(places: list[Place]) -> set[frozenset[str]]:
    return {frozenset(member.stream for member in group) for group in combinations(places)}


def test_streams_on_the_same_cores_exclude_each_other() -> None:
    found = names(
        [
            place("cpu:0/0", {0}, {0}),
            place("cpu:1/0", {0}, {1}),
            place("opencl:0/0", {0}, {0}),
            place("opencl:0/1", {1}, {1}),
        ]
    )
    assert found == {
        frozenset({"cpu:0/0", "cpu:1/0"}),
        frozenset({"cpu:0/0", "opencl:0/1"}),
        frozenset({"opencl:0/0", "cpu:1/0"}),
        frozenset({"opencl:0/0", "opencl:0/1"}),
    }


def test_a_whole_device_stands_against_its_parts_and_beside_a_gpu() -> None:
    found = names(
        [
            place("cpu:0/0", {0, 1}, {0, 1}),
            place("cpu:0/1", {0}, {0}),
            place("cpu:0/2", {1}, {1}),
            place("opencl:0/0", {0}),
        ]
    )
    assert found == {frozenset({"cpu:0/0", "opencl:0/0"}), frozenset({"cpu:0/1", "cpu:0/2", "opencl:0/0"})}


@given(st.lists(st.frozensets(st.integers(0, 4), min_size=1), min_size=1, max_size=7))
def test_sets_are_free_of_conflicts_and_none_could_be_larger(cores: list[frozenset[int]]) -> None:
    places = [place(f"cpu:{number}/0", {0}, set(its)) for number, its in enumerate(cores)]
    groups = combinations(places)
    assert groups
    for group in groups:
        assert not any(a.meets(b) for at, a in enumerate(group) for b in group[at + 1 :])
        assert all(other in group or any(other.meets(member) for member in group) for other in places)


def test_lost_devices_and_second_streams_of_the_same_units_are_left_out() -> None:
    def device(name: str, lost: str | None, *units: list[int]) -> dict[str, object]:
        return {
            "id": name,
            "api": "cpu",
            "name": "a processor",
            "units": 2,
            "memory": "host",
            "details": "",
            "lost": lost,
            "streams": [
                {"id": f"{name}/{number}", "units": its, "cores": its} for number, its in enumerate(units)
            ],
        }

    status = {"devices": [device("cpu:0", None, [0, 1], [0, 1]), device("cpu:1", "it broke", [0])]}
    assert [found.stream for found in places_of(status)] == ["cpu:0/0"]
