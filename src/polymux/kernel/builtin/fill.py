"""fill: every element of ``y`` becomes ``value``, for any dtype."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

from polymux.core.dtype import DType
from polymux.core.errors import InvalidRequest
from polymux.core.implementation import CudaFunction, OpenCLSource
from polymux.core.kernel_spec import BufferParam, KernelSpec, ScalarParam
from polymux.core.opencl_plan import OpenCLPlan
from polymux.core.task_view import BufferView
from polymux.kernel.builtin import operands as check
from polymux.kernel.builtin.native import native
from polymux.kernel.builtin.opencl import bits_option, launch, long, pointers, ulong
from polymux.kernel.definition import Definition

SPEC = KernelSpec(
    "fill",
    outputs=(BufferParam("y"),),
    scalars=(ScalarParam("value", DType.F64),),
    idempotent=True,
    doc="Every element of y becomes value. Any dtype; a value that the dtype cannot hold is refused, one between two"
    " floats is rounded, complex elements get it as their real part.",
)
SOURCE = """
__kernel void fill(__global T *y, ulong bits, long n) {
  long i = get_global_id(0);
  if (i < n) y[i] = PATTERN;
}
"""
_FORMATS = {DType.F16: "<e", DType.F32: "<f", DType.C64: "<f", DType.F64: "<d", DType.C128: "<d"}


def plan(spec: KernelSpec, buffers: Sequence[BufferView], scalars: check.Scalars) -> OpenCLPlan:
    """One work-item per element; they store the element's bits, which are made here."""
    y = check.named(spec, buffers)["y"]
    bits = element_bits(y.dtype, float(scalars["value"]))
    n = check.size(y)
    if n == 0:
        return OpenCLPlan()
    pattern = "(ulong2)(bits,0)" if y.dtype.itemsize == 16 else "(T)bits"
    options = (bits_option(y.dtype), f"-DPATTERN={pattern}")
    return OpenCLPlan((launch("fill", [*pointers(1), ulong(bits), long(n)], (n,)),), options)


def element_bits(dtype: DType, value: float) -> int:
    """Bits of `value` as an element of `dtype` (the real part of a complex one).

    Raises
    ------
    InvalidRequest
        If the dtype cannot hold it.
    """
    if dtype is DType.BOOL or dtype.is_integer:
        return _integer_bits(dtype, value)
    if dtype is DType.BF16:
        value = _rounded_to_bfloat16(value)
    try:
        packed = struct.pack(_FORMATS.get(dtype, "<f"), value)
    except OverflowError:
        raise _does_not_fit(dtype, value, "it is out of their range") from None
    bits = int.from_bytes(packed, "little")
    return bits >> 16 if dtype is DType.BF16 else bits


def _integer_bits(dtype: DType, value: float) -> int:
    if not value.is_integer():
        raise _does_not_fit(dtype, value, "it is no integer")
    if dtype is DType.BOOL:
        low, high = 0, 1
    else:
        bits = 8 * dtype.itemsize
        signed = dtype <= DType.I64
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    if not low <= value <= high:
        raise _does_not_fit(dtype, value, "it is out of their range")
    return int(value) & ((1 << 8 * dtype.itemsize) - 1)


def _rounded_to_bfloat16(value: float) -> float:
    """Round once, ties to even, to 8 significant bits; a NaN or an infinity stays."""
    if not math.isfinite(value):
        return value
    _, exponent = math.frexp(value)
    unit = max(exponent, -125) - 8
    rounded = math.ldexp(round(math.ldexp(value, -unit)), unit)
    return rounded or math.copysign(0.0, value)  # a zero keeps its sign


def _does_not_fit(dtype: DType, value: float, why: str) -> InvalidRequest:
    return InvalidRequest(f"value {value!r} does not fit the elements of y ({dtype.name_short}): {why}")


def on_cuda(y: Any, *, value: float) -> None:
    """CuPy's fill."""
    element_bits(DType.from_numpy(y.dtype), value)  # which refuses what does not fit
    y.fill(value)


KERNEL = Definition(SPEC, (native("fill"), OpenCLSource(SOURCE, plan), CudaFunction(on_cuda)))
