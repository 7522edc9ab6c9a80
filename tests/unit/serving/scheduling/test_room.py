"""Room for the inputs of waiting requests."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from polymux.serving.scheduling.room import Room


def test_one_model_may_take_what_is_shared_and_leaves_the_others_their_part() -> None:
    room = Room(1000)
    greedy, modest = room.add(10), room.add(10)
    while greedy.take(50):
        pass
    assert greedy.nbytes == 750
    assert modest.take(250)
    assert not modest.take(1)
    greedy.give_back(100)
    assert modest.take(100)


def test_a_model_that_goes_leaves_its_part() -> None:
    room = Room(1000)
    first, second = room.add(10), room.add(10)
    room.remove(second)
    assert first.take(1000)


def test_no_more_requests_than_may_wait_come() -> None:
    model = Room(1000).add(2)
    assert model.full == ""
    model.waiting = 2
    assert "2 requests wait" in model.full


@given(
    st.integers(1, 5),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 400), st.booleans()), max_size=60),
)
def test_all_together_never_take_more_than_there_is_and_each_can_have_its_part(
    count: int, steps: list[tuple[int, int, bool]]
) -> None:
    room = Room(1000)
    models = [room.add(10) for _ in range(count)]
    for index, nbytes, takes in steps:
        model = models[index % count]
        if takes:
            own = 500 // count
            can_have = model.nbytes + nbytes <= own
            assert model.take(nbytes) or not can_have
        else:
            model.give_back(min(model.nbytes, nbytes))
        assert sum(each.nbytes for each in models) <= 1000
