"""A task's buffers and scalars against what its kernel takes."""

from __future__ import annotations

import pytest

from polymux.core.dtype import DType
from polymux.core.kernel_spec import BufferParam, KernelSpec, ScalarParam
from polymux.core.status import TaskStatus
from polymux.device.protocol import LaunchError
from polymux.server.arguments import Ref, check_buffers, check_scalars

SPEC = KernelSpec(
    "k",
    (BufferParam("x", (DType.F32,), (None, 3)),),
    (BufferParam("y"),),
    (ScalarParam("a", DType.F32),),
)


def ref(access: int, dtype: DType = DType.F32, shape: tuple[int, ...] = (2, 3)) -> Ref:
    return (0, 0, access, int(dtype), shape, 0, 24, 0)


def test_what_fits_is_taken() -> None:
    check_buffers(SPEC, [ref(1), ref(2, DType.I8, (9,))])
    check_buffers(SPEC, [ref(3), ref(3)])
    check_buffers(KernelSpec("any", variadic=True), [ref(1)] * 16)
    assert check_scalars(SPEC, SPEC.pack({"a": 2.0})) == {"a": 2.0}


@pytest.mark.parametrize(
    ("refs", "said"),
    [
        ([ref(1)], r"takes 2 buffers \(x -> y\), the task has 1"),
        ([ref(1), ref(2), ref(2)], "the task has 3"),
        ([ref(1, DType.F64), ref(2)], "input 'x' has dtype f8; it takes f4"),
        ([ref(1, shape=(2, 4)), ref(2)], r"input 'x' has shape \(2, 4\); it takes \(any, 3\)"),
        ([ref(1, shape=(3,)), ref(2)], r"has shape \(3,\)"),
        ([ref(2), ref(2)], "input 'x' is given for WRITE; an input needs READ"),
        ([ref(1), ref(1)], "output 'y' is given for READ"),
    ],
)
def test_what_does_not_fit_is_refused_with_argument_value_and_remedy(refs: list[Ref], said: str) -> None:
    with pytest.raises(LaunchError, match=said) as caught:
        check_buffers(SPEC, refs)
    assert caught.value.code is TaskStatus.BAD_ARGUMENT


def test_scalars_of_another_size_are_refused_with_the_signature() -> None:
    with pytest.raises(LaunchError, match="a: f4") as caught:
        check_scalars(SPEC, b"12345678")
    assert caught.value.code is TaskStatus.BAD_ARGUMENT
