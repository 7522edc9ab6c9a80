"""Launches on an OpenCL queue whose driver fails, with a driver that a test is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from polymux.core.dtype import DType
from polymux.core.opencl_plan import BufferArgument, OpenCLLaunch, OpenCLPlan, ScalarArgument, ScratchArgument
from polymux.core.status import TaskStatus
from polymux.core.task_view import Access, BufferView
from polymux.device.opencl_program import KernelFunction
from polymux.device.opencl_queue import OpenCLQueue
from polymux.device.protocol import LaunchError, Operand


class DriverError(Exception):
    """Stands for pyopencl.Error."""

    code = -5


class FakeEvent:
    def __init__(self, driver: FakeDriver) -> None:
        self._driver = driver

    @property
    def command_execution_status(self) -> int:
        return -5 if self._driver.fails_late else 0

    def wait(self) -> None:
        if self._driver.fails_late:
            raise DriverError("clWaitForEvents failed: OUT_OF_RESOURCES")


class FakeKernel:
    num_args = 2

    def __init__(self) -> None:
        self.given: list[tuple[Any, ...]] = []
        self.types: list[tuple[Any, ...]] = []

    def get_work_group_info(self, *_: Any) -> int:
        return 64

    def set_args(self, *arguments: Any) -> None:
        self.given.append(arguments)

    def set_arg_types(self, types: tuple[Any, ...]) -> None:
        self.types.append(types)


class FakeDriver:
    """As much of pyopencl and its objects as a queue uses."""

    Error = DriverError

    class kernel_work_group_info:  # noqa: N801
        WORK_GROUP_SIZE = 0

    class status_code:  # noqa: N801
        @staticmethod
        def to_string(code: int, _: str) -> str:
            return {-5: "OUT_OF_RESOURCES"}[code]

    class mem_flags:  # noqa: N801
        READ_WRITE = 0

    class device_type:  # noqa: N801
        CPU = 2

    type = 4  # a GPU

    def __init__(self) -> None:
        self.enqueued = 0
        self.refuses_at = -1
        self.fails_late = False
        self.finished = 0
        self.allocated: list[int] = []
        self.device = self
        self.context = self
        self.max_work_item_dimensions = 3
        self.local_mem_size = 1024

    def enqueue_nd_range_kernel(self, *_: Any) -> FakeEvent:
        self.enqueued += 1
        if self.enqueued == self.refuses_at:
            raise DriverError("clEnqueueNDRangeKernel failed: OUT_OF_RESOURCES")
        return FakeEvent(self)

    def flush(self) -> None:
        pass

    def finish(self) -> None:
        self.finished += 1

    def Buffer(self, _context: Any, _flags: Any, size: int) -> Any:  # noqa: N802
        class Scratch:
            pass

        self.allocated.append(size)
        scratch = Scratch()
        scratch.size = size  # type: ignore[attr-defined]
        return scratch


@pytest.fixture
def driver() -> FakeDriver:
    return FakeDriver()


@pytest.fixture
def queue(driver: FakeDriver) -> OpenCLQueue:
    return OpenCLQueue(driver, driver, "opencl:0")


@pytest.fixture
def function(driver: FakeDriver) -> KernelFunction:
    return KernelFunction(driver, FakeKernel(), driver)


def operand() -> Operand:
    return Operand(BufferView(0, DType.F32, (4,), 16, Access.READ, 0), memory=object())


def plan(
    launches: int = 1, scratch: bool = False, value: float = 1.0, scratch_nbytes: int = 64
) -> OpenCLPlan:
    first = ScratchArgument(0) if scratch else BufferArgument(0)
    launch = OpenCLLaunch("f", (first, ScalarArgument(DType.F32, value)), (4,), None)
    return OpenCLPlan((launch,) * launches, scratch_nbytes=(scratch_nbytes,) if scratch else ())


def test_a_refused_launch_is_told_at_once_when_those_before_it_have_ended(
    driver: FakeDriver, queue: OpenCLQueue, function: KernelFunction
) -> None:
    commands = queue.commands(plan(3), {"f": function}, [operand()])
    driver.refuses_at = 2
    with pytest.raises(LaunchError, match="OUT_OF_RESOURCES") as caught:
        queue.start(commands)
    assert caught.value.code is TaskStatus.DEVICE_FAILED
    assert driver.finished == 1


def test_a_launch_that_fails_while_it_runs_is_told_when_it_is_waited_for(
    driver: FakeDriver, queue: OpenCLQueue, function: KernelFunction
) -> None:
    launch = queue.start(queue.commands(plan(), {"f": function}, [operand()]))
    driver.fails_late = True
    assert launch.ended(), "a failed one has ended"
    with pytest.raises(LaunchError, match="it failed while it ran: .*OUT_OF_RESOURCES") as caught:
        launch.wait()
    assert caught.value.code is TaskStatus.DEVICE_FAILED


def test_arguments_are_set_when_they_differ_and_their_types_once(
    queue: OpenCLQueue, function: KernelFunction
) -> None:
    one, other = (queue.commands(plan(value=value), {"f": function}, [operand()]) for value in (1.0, 2.0))
    for commands in (one, one, other, other, one):
        queue.start(commands)
    assert [given[1] for given in function.kernel.given] == [1.0, 2.0, 1.0]
    assert function.kernel.types == [(None, np.dtype(np.float32))]


def test_a_kernel_keeps_no_scratch_memory_alive(queue: OpenCLQueue, function: KernelFunction) -> None:
    queue.start(queue.commands(plan(scratch=True), {"f": function}, [operand()]))
    assert function.holds is None


@pytest.mark.parametrize("nbytes", [64, 1 << 30])
def test_scratch_memory_of_any_size_serves_one_plan_after_the_other_until_it_is_given_back(
    driver: FakeDriver, queue: OpenCLQueue, function: KernelFunction, nbytes: int
) -> None:
    def run(scratch_nbytes: int) -> None:
        queue.start(
            queue.commands(plan(scratch=True, scratch_nbytes=scratch_nbytes), {"f": function}, [operand()])
        )

    for _ in range(3):
        run(nbytes)
    run(nbytes // 2)
    assert driver.allocated == [nbytes]
    queue.trim()
    run(nbytes)
    assert driver.allocated == [nbytes, nbytes]


def test_plans_that_differ_by_turns_do_not_make_their_scratch_memory_anew(
    driver: FakeDriver, queue: OpenCLQueue, function: KernelFunction
) -> None:
    launch = OpenCLLaunch("f", (ScratchArgument(0), ScalarArgument(DType.F32, 1.0)), (4,), None)
    large = OpenCLPlan((launch,), scratch_nbytes=(10_000_000, 1_000))
    small = OpenCLPlan((launch,), scratch_nbytes=(1_000,))
    for each in (large, small) * 3:
        queue.start(queue.commands(each, {"f": function}, []))
    assert driver.allocated == [10_000_000, 1_000]


def test_no_more_scratch_memory_is_kept_than_the_plan_with_most_of_it_had(
    driver: FakeDriver, queue: OpenCLQueue, function: KernelFunction
) -> None:
    launch = OpenCLLaunch("f", (ScratchArgument(0), ScalarArgument(DType.F32, 1.0)), (4,), None)
    sizes = (100, 200, 300, 400, 400, 100)
    for nbytes in sizes:
        queue.start(queue.commands(OpenCLPlan((launch,), scratch_nbytes=(nbytes,)), {"f": function}, []))
    assert driver.allocated == [100, 200, 300, 400], "the largest one is kept, and serves the smaller sizes"
