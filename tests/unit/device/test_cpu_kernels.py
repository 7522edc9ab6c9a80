from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from polymux.core.dtype import DType
from polymux.core.errors import InvalidRequest
from polymux.core.implementation import PythonFunction
from polymux.core.kernel_spec import BufferParam, KernelSpec
from polymux.core.status import TaskStatus
from polymux.core.task_view import Access, BufferView
from polymux.device.cpu_kernels import PreparedPython
from polymux.device.protocol import LaunchError, Operand
from polymux.device.thread_team import ThreadTeam

SPEC = KernelSpec("k", (BufferParam("x"),), (BufferParam("y"),))
TEAM = ThreadTeam((0,))


def run(function: Callable[..., Any], *, parallel: bool = False, **scalars: float) -> tuple[Any, list[float]]:
    arrays = [np.arange(4, dtype=np.float32), np.zeros(4, np.float32)]
    views = [
        BufferView(i, DType.F32, (4,), 16, access, 0) for i, access in enumerate((Access.READ, Access.WRITE))
    ]
    operands = [Operand(view, array) for view, array in zip(views, arrays, strict=True)]
    shapes = PreparedPython(SPEC, PythonFunction(function, parallel), TEAM).run(operands, scalars)
    return shapes, arrays[1].tolist()


def scale(x: Any, y: Any, a: float = 1.0) -> None:
    y[...] = a * x


def test_it_is_called_with_inputs_outputs_and_scalars_and_writes_in_place() -> None:
    assert run(scale, a=2.0) == (None, [0, 2, 4, 6])


def test_it_gets_the_team_only_when_it_is_parallel() -> None:
    def body(x: Any, y: Any, team: ThreadTeam) -> None:
        team.parallel_for(4, lambda begin, end: scale(x[begin:end], y[begin:end]))

    assert run(body, parallel=True) == (None, [0, 1, 2, 3])
    with pytest.raises(LaunchError, match="team"):
        run(body)


def test_what_numpy_returns_for_its_own_output_is_fine() -> None:
    assert run(lambda x, y: np.multiply(x, 3, out=y)) == (None, [0, 3, 6, 9])
    assert run(lambda x, y: (np.negative(x, out=y),)) == (None, [0, -1, -2, -3])


def test_it_may_return_the_actual_shapes_of_its_outputs() -> None:
    assert run(lambda *_: [(2,)])[0] == [(2,)]
    assert run(lambda *_: [(4,)])[0] is None
    assert run(lambda *_: ((2, 2),))[0] == [(2, 2)]


@pytest.mark.parametrize(
    ("returned", "code", "problem"),
    [
        (np.ones(4), TaskStatus.KERNEL_FAILED, "returned a ndarray, which would be lost; write results into"),
        (7, TaskStatus.KERNEL_FAILED, "returned a int"),
        ("shape", TaskStatus.KERNEL_FAILED, "returned a str"),
        ([], TaskStatus.KERNEL_FAILED, "0 shapes for 1 outputs"),
        ([(1,), (1,)], TaskStatus.KERNEL_FAILED, "2 shapes for 1 outputs"),
        ([(-5,)], TaskStatus.KERNEL_FAILED, "as the shape of 'y'"),
        ([(float("nan"),)], TaskStatus.KERNEL_FAILED, "as the shape of 'y'"),
        ([(5,)], TaskStatus.OUTPUT_TOO_SMALL, "needs 20 bytes"),
    ],
)
def test_anything_else_that_it_returns_is_an_error(returned: object, code: TaskStatus, problem: str) -> None:
    with pytest.raises(LaunchError, match=problem) as failure:
        run(lambda *_: returned)
    assert failure.value.code is code


def raising(error: BaseException) -> Callable[..., None]:
    def function(x: Any, y: Any) -> None:
        raise error

    return function


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (
            RuntimeError("it broke"),
            TaskStatus.KERNEL_FAILED,
            r"it raised RuntimeError: it broke \(.*test_cpu_kernels\.py:",
        ),
        (ValueError(), TaskStatus.KERNEL_FAILED, r"it raised ValueError \("),
        (SystemExit(3), TaskStatus.KERNEL_FAILED, "it raised SystemExit: 3"),
        (KeyboardInterrupt(), TaskStatus.KERNEL_FAILED, "it raised KeyboardInterrupt"),
        (InvalidRequest("x must be square"), TaskStatus.BAD_ARGUMENT, "x must be square"),
        (MemoryError("no more"), TaskStatus.OUT_OF_MEMORY, "the host's memory is used up: no more"),
        (LaunchError(TaskStatus.DEVICE_FAILED, "gone"), TaskStatus.DEVICE_FAILED, "gone"),
    ],
)
def test_what_it_raises_becomes_the_tasks_status(error: BaseException, code: TaskStatus, text: str) -> None:
    with pytest.raises(LaunchError, match=text) as failure:
        run(raising(error))
    assert failure.value.code is code


def test_a_kernel_that_recurses_without_end_is_an_error() -> None:
    def endless(x: Any, y: Any) -> None:
        endless(x, y)

    with pytest.raises(LaunchError, match="RecursionError"):
        run(endless)
    assert sys.getrecursionlimit() > 0


def test_a_kernel_called_with_the_wrong_arguments_says_which() -> None:
    with pytest.raises(LaunchError, match=r"TypeError: .*'b'"):
        run(scale, b=1.0)
