from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from polymux.core.dtype import DType
from polymux.core.kernel_spec import BufferParam, KernelSpec
from polymux.core.status import TaskStatus
from polymux.core.task_view import Access, BufferView
from polymux.device.host_arrays import check_shapes, numpy_dtype, operand_array, typed
from polymux.device.protocol import LaunchError, Operand

SPEC = KernelSpec("k", (BufferParam("x"),), (BufferParam("y"), BufferParam("z")))


def view(dtype: DType, *shape: int, access: Access = Access.WRITE) -> BufferView:
    return BufferView(0, dtype, shape, int(np.prod(shape, dtype=int)) * dtype.itemsize, access, 0)


def operands(*shapes: tuple[int, ...]) -> list[Operand]:
    return [Operand(view(DType.F32, *shape)) for shape in shapes]


def test_the_beginning_of_a_memory_is_seen_as_typed_elements_without_copy() -> None:
    memory = np.zeros(100, np.uint8)
    array = typed(memory, view(DType.I16, 3, 4))
    assert (array.shape, array.dtype, array.base is not None) == ((3, 4), np.dtype("i2"), True)
    array[2, 3] = -1
    assert memory[22:25].tolist() == [255, 255, 0]


def test_what_a_task_only_reads_cannot_be_written() -> None:
    memory = np.zeros(16, np.uint8)
    with pytest.raises(ValueError, match="read-only"):
        typed(memory, view(DType.F32, 4, access=Access.READ))[0] = 1
    typed(memory, view(DType.F32, 4, access=Access.READ | Access.WRITE))[0] = 1


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,) * 8])
def test_scalars_empty_and_deep_arrays_have_views(shape: tuple[int, ...]) -> None:
    assert typed(np.zeros(8, np.uint8), view(DType.F64, *shape)).shape == shape


def test_an_operand_of_host_memory_is_its_array() -> None:
    array = np.zeros(3, np.float32)
    assert operand_array(Operand(view(DType.F32, 3), array)) is array


def test_every_element_type_has_a_numpy_type_of_its_size() -> None:
    for dtype in DType:
        assert numpy_dtype(dtype).itemsize == dtype.itemsize


def test_shapes_that_are_the_buffers_are_nothing_to_tell() -> None:
    assert check_shapes(SPEC, [(2, 3), (4,)], operands((9,), (2, 3), (4,))) is None
    assert check_shapes(SPEC, [(2, 3), (np.int64(4),)], operands((9,), (2, 3), (4,))) is None  # type: ignore[list-item]


def test_smaller_shapes_are_told() -> None:
    assert check_shapes(SPEC, [(3, 2), (0, 7)], operands((9,), (2, 3), (4,))) == [(3, 2), (0, 7)]


@pytest.mark.parametrize(
    ("shapes", "code", "problem"),
    [
        ([(1,)], TaskStatus.KERNEL_FAILED, "returned 1 shapes for 2 outputs"),
        ([(1,), (-1,)], TaskStatus.KERNEL_FAILED, r"\(-1,\) as the shape of 'z'"),
        ([(1.5,), (1,)], TaskStatus.KERNEL_FAILED, "as the shape of 'y'"),
        ([(1,), (1,) * 9], TaskStatus.KERNEL_FAILED, "9 dimensions"),
        ([(1 << 62, 1 << 62), (1,)], TaskStatus.KERNEL_FAILED, "as the shape of 'y'"),
        ([("a",), (1,)], TaskStatus.KERNEL_FAILED, "as the shape of 'y'"),
        (
            [(1,), (5,)],
            TaskStatus.OUTPUT_TOO_SMALL,
            r"'z' has shape \(5,\) and needs 20 bytes.*has 16",
        ),
    ],
)
def test_shapes_that_cannot_be_or_do_not_fit_are_errors(
    shapes: list[Any], code: TaskStatus, problem: str
) -> None:
    with pytest.raises(LaunchError, match=problem) as failure:
        check_shapes(SPEC, shapes, operands((9,), (2, 3), (4,)))
    assert failure.value.code is code
