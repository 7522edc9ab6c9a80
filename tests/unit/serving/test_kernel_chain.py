"""A model in parts: which tasks a request becomes, and which buffers they have."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from polymux.client import Client
from polymux.core.dtype import DType
from polymux.core.errors import KernelFailed, OutputTooSmall, QueueFull, task_failed
from polymux.core.kernel_spec import BufferParam, KernelSpec
from polymux.core.status import TaskStatus
from polymux.serving.kernel_runner import KernelRunner
from tests.unit.serving.test_kernel_runner import FakeBuffer


def params(*names: str) -> tuple[BufferParam, ...]:
    return tuple(BufferParam(name, (DType.F32,), (None,)) for name in names)


WHOLE = KernelSpec("m/1", params("x"), params("y"))
PARTS = (
    KernelSpec("m/1/part-1", params("x"), params("a", "b")),
    KernelSpec("m/1/part-2", params("a"), params("c")),
    KernelSpec("m/1/part-3", params("b", "c", "x"), params("y")),
)


class FakeTask:
    def __init__(self, work: Callable[[], None]) -> None:
        self._error: Exception | None = None
        try:
            work()
        except Exception as error:
            self._error = error

    def result(self) -> None:
        if self._error is not None:
            raise self._error

    def __await__(self) -> Any:
        yield from asyncio.sleep(0).__await__()
        self.result()


class FakeQueue:
    """A queue whose tasks give outputs as long as their first input, or as `length` says."""

    capacity = 64

    def __init__(self) -> None:
        self.buffers: list[FakeBuffer] = []
        self.submitted: list[str] = []
        self.wrote: list[tuple[int, ...]] = []
        self.in_flight = 0
        self.length: Callable[[str, int], int] = lambda _, given: given
        self.fails = ""

    def empty(self, shape: tuple[int, ...], dtype: str) -> FakeBuffer:
        self.buffers.append(FakeBuffer(shape, DType.parse(dtype).itemsize, False))
        return self.buffers[-1]

    def submit(
        self, name: str, inputs: Sequence[FakeBuffer], outputs: Sequence[FakeBuffer], **_: int
    ) -> FakeTask:
        self.submitted.append(name)
        self.wrote.append(tuple(map(id, outputs)))

        def work() -> None:
            if name == self.fails:
                raise task_failed(TaskStatus.KERNEL_FAILED, "1.0", 0, name, "division by zero")
            for buffer in outputs:
                needed = self.length(name, inputs[0].shape[0])
                if buffer.nbytes < 4 * needed:
                    raise task_failed(TaskStatus.OUTPUT_TOO_SMALL, "1.0", 0, name, "too small")
                buffer.shape = (needed,)

        return FakeTask(work)

    @property
    def open_count(self) -> int:
        return sum(not buffer.closed for buffer in self.buffers)


class FakeClient:
    def __init__(self, queue: FakeQueue) -> None:
        self._queue = queue

    def queue(self, _name: str, **_: Any) -> FakeQueue:
        return self._queue


@pytest.fixture
def queue() -> FakeQueue:
    return FakeQueue()


@pytest.fixture
def runner(queue: FakeQueue) -> KernelRunner:
    return KernelRunner(cast("Client", FakeClient(queue)), WHOLE, parts=PARTS)


def run(runner: KernelRunner, length: int = 8) -> Sequence[FakeBuffer]:
    inputs: Any = [FakeBuffer((length,), 4, False)]
    return cast("Sequence[FakeBuffer]", asyncio.run(runner.run(inputs)))


def test_later_requests_of_the_same_shapes_use_the_same_buffers_between_the_parts(
    runner: KernelRunner, queue: FakeQueue
) -> None:
    for _ in range(3):
        (output,) = run(runner)
        assert output.shape == (8,)
        assert not output.closed
    assert queue.submitted == [part.name for part in PARTS] * 3
    assert queue.wrote[3:5] == queue.wrote[6:8], "what is handed on lies where it lay before"
    assert len(set(queue.wrote[5::3])) == 2, "each request has its own output"
    assert queue.open_count == 3 + 3, "three outputs, and three tensors between"


def test_other_shapes_get_other_buffers_and_the_old_ones_go(runner: KernelRunner, queue: FakeQueue) -> None:
    for length in (8, 8, 5, 5, 8):
        (output,) = run(runner, length)
        assert output.shape == (length,)
        output.close()
    assert queue.open_count == 3


def test_a_model_that_hands_on_other_shapes_for_other_values_runs_part_by_part_from_then_on(
    runner: KernelRunner, queue: FakeQueue
) -> None:
    run(runner)[0].close()
    run(runner)[0].close()
    for length in (3, 7, 9, 1):
        queue.length = lambda name, given, length=length: length if name == "m/1/part-2" else given
        (output,) = run(runner)
        assert output.shape == (8,)
        output.close()
    assert queue.open_count == 0, "nothing is kept between the parts"


def test_a_part_that_fails_leaves_no_buffer_of_its_request(runner: KernelRunner, queue: FakeQueue) -> None:
    for part in PARTS:
        queue.fails = part.name
        with pytest.raises(KernelFailed):
            run(runner)
        assert queue.open_count == 0
    queue.fails = ""
    run(runner)[0].close()
    queue.fails = PARTS[1].name
    with pytest.raises(KernelFailed, match="part-2"):
        run(runner)
    assert queue.open_count == 3
    queue.fails = ""
    assert run(runner)[0].shape == (8,)


def test_a_queue_without_room_for_all_parts_refuses_the_request(
    runner: KernelRunner, queue: FakeQueue
) -> None:
    run(runner)[0].close()
    queue.in_flight = queue.capacity - 2
    with pytest.raises(QueueFull, match="no room for 3 more"):
        run(runner)


def test_an_output_that_never_fits_is_an_error(runner: KernelRunner, queue: FakeQueue) -> None:
    queue.length = lambda name, given: 1 << 40 if name == "m/1/part-3" else given
    with pytest.raises(OutputTooSmall):
        run(runner)
    assert queue.open_count == 0


def test_a_part_that_fails_for_an_unexpected_shape_from_an_earlier_one_runs_again_part_by_part(
    runner: KernelRunner, queue: FakeQueue
) -> None:
    run(runner)[0].close()
    failures: list[str] = []

    def length(name: str, given: int) -> int:
        if name == PARTS[2].name and not failures:
            failures.append(name)
            raise task_failed(TaskStatus.KERNEL_FAILED, "1.0", 0, name, "shapes do not fit")
        return 3 if name == PARTS[1].name else given

    queue.length = length
    for _ in range(2):
        (output,) = run(runner)
        assert output.shape == (8,)
        output.close()
    assert failures == [PARTS[2].name]
    assert queue.submitted == [part.name for part in PARTS] * 4, "one of three requests ran twice"
    assert queue.open_count == 0


def test_a_request_whose_buffers_another_one_closed_meanwhile_runs_again(
    runner: KernelRunner, queue: FakeQueue
) -> None:
    run(runner)[0].close()
    lengths = iter([5])
    queue.length = lambda name, given: next(lengths, given) if name == PARTS[2].name else given

    async def both() -> list[Sequence[Any]]:
        inputs: Any = [FakeBuffer((8,), 4, False)]
        return await asyncio.gather(runner.run(inputs), runner.run(inputs))

    for (output,) in asyncio.run(both()):
        assert output.shape == (8,)
        output.close()
    assert len(queue.submitted) == len(PARTS) * 5
    assert queue.open_count == 0
