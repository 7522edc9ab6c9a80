"""Many requests as one task, and their answers apart again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from polymux.core.dtype import DType
from polymux.core.errors import PolymuxError, QueueFull
from polymux.serving.scheduling.merging import Tensors, run_together
from tests.unit.serving.fake_model import FakeBuffer

Array = np.ndarray[Any, Any]


class Lane:
    """Calls a function of the inputs."""

    def __init__(self, function: Callable[..., Sequence[Array]]) -> None:
        self._function = function
        self.live: set[FakeBuffer] = set()
        self.tasks: list[list[tuple[int, ...]]] = []

    def buffer(self, array: Array) -> FakeBuffer:
        return FakeBuffer(array, self.live)

    def allocate(self, shape: tuple[int, ...], dtype: DType) -> FakeBuffer:
        return self.buffer(np.empty(shape, dtype.to_numpy()))

    async def run(self, inputs: Tensors) -> Tensors:
        self.tasks.append([buffer.shape for buffer in inputs])
        return [self.buffer(array) for array in self._function(*(buffer.numpy() for buffer in inputs))]

    def close(self) -> None:
        pass


def together(
    lane: Lane, requests: Sequence[Sequence[Array]], batched: bool = True
) -> tuple[list[Any], PolymuxError | None]:
    """Run requests and return their outputs as lists, or texts of errors; all memory must have come back."""
    results: dict[int, Any] = {}

    def deliver(index: int, outcome: Tensors | PolymuxError) -> None:
        assert index not in results
        if isinstance(outcome, PolymuxError):
            results[index] = str(outcome)
            return
        results[index] = [buffer.numpy().tolist() for buffer in outcome]
        for buffer, values in zip(outcome, results[index], strict=True):
            assert buffer.shape == np.shape(values) or 0 in buffer.shape
            buffer.close()
            buffer.close()

    inputs = [[lane.buffer(array) for array in request] for request in requests]
    dtypes = [DType.F32] * len(requests[0])
    problem = asyncio.run(run_together(lane, dtypes, inputs, batched, deliver))
    assert sorted(results) == list(range(len(requests)))
    assert lane.live == {buffer for request in inputs for buffer in request}
    return [results[index] for index in range(len(requests))], problem


def rows(*values: float, width: int = 2) -> Array:
    return np.repeat(np.array(values, np.float32)[:, None], width, axis=1)


def test_two_inputs_and_two_outputs_are_joined_and_parted() -> None:
    lane = Lane(lambda a, b: (a + b, a[:, 0] - b[:, 0]))
    answers, problem = together(lane, [(rows(1, 2), rows(10, 20)), (rows(3), rows(30))])
    assert problem is None
    assert answers == [[[[11, 11], [22, 22]], [-9, -18]], [[[33, 33]], [-27]]]
    assert lane.tasks == [[(3, 2), (3, 2)]]


def test_other_extents_are_another_task() -> None:
    lane = Lane(lambda a: (a,))
    answers, _ = together(lane, [(rows(1),), (rows(2, width=3),), (rows(3),)])
    assert answers == [[[[1, 1]]], [[[2, 2, 2]]], [[[3, 3]]]]
    assert lane.tasks == [[(2, 2)], [(1, 3)]]


def test_without_a_batch_dimension_each_request_is_a_task() -> None:
    lane = Lane(lambda a: (a,))
    together(lane, [(rows(1),), (rows(1),)], batched=False)
    assert lane.tasks == [[(1, 2)], [(1, 2)]]


def test_a_failure_is_found_by_running_each_alone() -> None:
    def function(a: Array) -> Sequence[Array]:
        if 13 in a:
            raise PolymuxError("bad luck")
        return (a,)

    answers, problem = together(Lane(function), [(rows(value),) for value in (1, 13, 3)])
    assert problem is None
    assert answers == [[[[1, 1]]], "bad luck", [[[3, 3]]]]


def test_a_failure_that_is_nobodys_is_that_of_all_and_not_tried_again() -> None:
    def function(_: Array) -> Sequence[Array]:
        raise QueueFull("full")

    lane = Lane(function)
    answers, problem = together(lane, [(rows(1),), (rows(2, width=3),)])
    assert isinstance(problem, QueueFull)
    assert answers == ["full", "full"]
    assert len(lane.tasks) == 1


def test_no_memory_for_the_batch_means_one_by_one() -> None:
    class Small(Lane):
        def allocate(self, shape: tuple[int, ...], dtype: DType) -> FakeBuffer:
            raise PolymuxError("no room")

    lane = Small(lambda a: (a,))
    answers, _ = together(lane, [(rows(1),), (rows(2),)])
    assert answers == [[[[1, 1]]], [[[2, 2]]]]
    assert lane.tasks == [[(1, 2)], [(1, 2)]]


def test_a_model_whose_output_is_not_the_batch_is_run_one_by_one() -> None:
    lane = Lane(lambda a: (a.sum(axis=0),))
    answers, _ = together(lane, [(rows(1, width=3),), (rows(2, width=3),)])
    assert answers == [[[1, 1, 1]], [[2, 2, 2]]]
    assert lane.tasks == [[(2, 3)], [(1, 3)], [(1, 3)]]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3), st.booleans()), min_size=1, max_size=8))
def test_whatever_comes_each_request_gets_its_own(shapes: list[tuple[int, int, bool]]) -> None:
    def function(a: Array) -> Sequence[Array]:
        if (a < 0).any():
            raise PolymuxError("negative")
        return (a * 2,)

    requests = [
        (np.full((count, width), -1 if bad else index, np.float32),)
        for index, (count, width, bad) in enumerate(shapes)
    ]
    answers, problem = together(Lane(function), requests)
    assert problem is None
    for index, (count, width, bad) in enumerate(shapes):
        assert answers[index] == ("negative" if bad else [[[2.0 * index] * width] * count])
