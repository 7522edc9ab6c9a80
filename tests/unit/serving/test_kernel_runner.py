from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from polymux.client import Client
from polymux.core.dtype import DType
from polymux.core.errors import KernelFailed, OutputTooSmall, SegmentFull, TaskFailed, task_failed
from polymux.core.kernel_spec import BufferParam, KernelSpec
from polymux.core.status import TaskStatus
from polymux.serving.kernel_runner import KernelRunner, core_priority

FREE = BufferParam("y", (DType.F32,), (None,))
SPEC = KernelSpec(
    "m/1", (BufferParam("x", (DType.F32,), (None,)),), (FREE, BufferParam("z", (DType.U8,), None))
)


class FakeBuffer:
    def __init__(self, shape: tuple[int, ...], itemsize: int, away: bool) -> None:
        self.shape = shape
        self.itemsize = itemsize
        self.away = away
        self.closed = False

    @property
    def nbytes(self) -> int:
        return self.shape[0] * self.itemsize

    def bring_home(self) -> None:
        self.away = False

    def close(self) -> None:
        self.closed = True


class FakeQueue:
    """A queue whose tasks call `behave` with the output buffers."""

    def __init__(
        self, behave: Callable[[Sequence[FakeBuffer]], None], away: bool = False, room: int = 1000
    ) -> None:
        self.behave = behave
        self.away = away
        self.room = room
        self.buffers: list[FakeBuffer] = []
        self.submitted: list[dict[str, Any]] = []

    def empty(self, shape: tuple[int, ...], dtype: str) -> FakeBuffer:
        if len(self.buffers) >= self.room:
            raise SegmentFull("no room")
        self.buffers.append(FakeBuffer(shape, DType.parse(dtype).itemsize, self.away))
        return self.buffers[-1]

    async def submit(self, name: str, _inputs: Any, outputs: Sequence[FakeBuffer], **hints: int) -> None:
        self.submitted.append({"name": name, **hints})
        await asyncio.sleep(0)
        self.behave(outputs)

    def open_count(self) -> int:
        return sum(not buffer.closed for buffer in self.buffers)


class FakeClient:
    def __init__(self, queue: FakeQueue) -> None:
        self._queue = queue

    def queue(self, _name: str, **_: Any) -> FakeQueue:
        return self._queue


def runner_of(queue: FakeQueue) -> KernelRunner:
    return KernelRunner(cast("Client", FakeClient(queue)), SPEC)


def run(runner: KernelRunner, length: int = 8, **hints: Any) -> Sequence[FakeBuffer]:
    inputs: Any = [FakeBuffer((length,), 4, False)]
    arguments = {"priority": 0, "deadline_ns": None, **hints}
    return cast("Sequence[FakeBuffer]", asyncio.run(runner.run(inputs, **arguments)))


def too_small(output: str, nbytes: int) -> TaskFailed:
    message = (
        f"output {output!r} of kernel 'm/1' has shape (1,) and needs {nbytes} bytes; the buffer has less"
    )
    return task_failed(TaskStatus.OUTPUT_TOO_SMALL, "1.0", 0, "m/1", message)


def needs(y_nbytes: int, z_nbytes: int) -> Callable[[Sequence[FakeBuffer]], None]:
    """Behave as a model whose outputs take that many bytes."""

    def behave(outputs: Sequence[FakeBuffer]) -> None:
        for name, buffer, nbytes in zip("yz", outputs, (y_nbytes, z_nbytes), strict=True):
            if buffer.nbytes < nbytes:
                raise too_small(name, nbytes)
            buffer.shape = (nbytes // buffer.itemsize,)

    return behave


def test_outputs_that_fit_are_returned_after_one_task() -> None:
    queue = FakeQueue(needs(40, 3))
    outputs = run(runner_of(queue))
    assert [buffer.shape for buffer in outputs] == [(10,), (3,)]
    assert queue.submitted == [{"name": "m/1"}]


def test_each_output_that_is_too_small_is_enlarged_and_remembered() -> None:
    queue = FakeQueue(needs(40_000, 90_000))
    runner = runner_of(queue)
    assert [buffer.nbytes for buffer in run(runner)] == [40_000, 90_000]
    assert len(queue.submitted) == 3
    assert queue.open_count() == 2
    run(runner)
    assert len(queue.submitted) == 4


def test_a_failure_that_names_no_size_enlarges_all_outputs() -> None:
    def behave(outputs: Sequence[FakeBuffer]) -> None:
        if outputs[0].nbytes < 10_000:
            raise task_failed(TaskStatus.OUTPUT_TOO_SMALL, "1.0", 0, "m/1", "too small")

    queue = FakeQueue(behave)
    run(runner_of(queue))
    assert len(queue.submitted) == 2


def test_an_output_that_never_fits_fails_after_a_bounded_number_of_attempts_and_leaves_no_buffer() -> None:
    def behave(outputs: Sequence[FakeBuffer]) -> None:
        raise too_small("y", outputs[0].nbytes + 4)

    queue = FakeQueue(behave)
    with pytest.raises(OutputTooSmall):
        run(runner_of(queue))
    assert len(queue.submitted) == 3
    assert queue.open_count() == 0


def test_a_failed_task_leaves_no_buffer() -> None:
    def behave(_: Sequence[FakeBuffer]) -> None:
        raise task_failed(TaskStatus.KERNEL_FAILED, "1.0", 0, "m/1", "division by zero")

    queue = FakeQueue(behave)
    with pytest.raises(KernelFailed):
        run(runner_of(queue))
    assert queue.open_count() == 0


def test_a_segment_without_room_for_the_second_output_gives_the_first_back() -> None:
    queue = FakeQueue(needs(4, 4), room=1)
    with pytest.raises(SegmentFull):
        run(runner_of(queue))
    assert queue.open_count() == 0
    assert queue.submitted == []


def test_outputs_on_a_device_are_brought_home() -> None:
    assert all(not buffer.away for buffer in run(runner_of(FakeQueue(needs(4, 4), away=True))))


def test_hints_are_passed_on_only_when_they_are_given() -> None:
    queue = FakeQueue(needs(4, 4))
    run(runner_of(queue), priority=1, deadline_ns=99)
    assert queue.submitted == [{"name": "m/1", "priority": 127, "deadline_ns": 99}]


@pytest.mark.parametrize(
    ("level", "priority"), [(1, 127), (2, 126), (128, 0), (256, -128), (2**64 - 1, -128)]
)
def test_level_one_is_the_highest_priority_and_all_levels_stay_within_the_cores_range(
    level: int, priority: int
) -> None:
    assert core_priority(level) == priority
