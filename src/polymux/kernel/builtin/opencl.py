"""What the OpenCL versions of the built-in kernels share: names of types, launches over a range.

Programs are specialised by build options (``-DT=float``), one program per dtype that is used. Where a kernel promises
the same bits as the native version, its source begins with `EXACT`.
"""

from __future__ import annotations

from collections.abc import Sequence

from polymux.core.dtype import DType
from polymux.core.errors import InvalidRequest
from polymux.core.opencl_plan import (
    BufferArgument,
    OpenCLArgument,
    OpenCLLaunch,
    ScalarArgument,
)

EXACT = "#pragma OPENCL FP_CONTRACT OFF\n"

TYPES = {
    DType.I32: "int",
    DType.I64: "long",
    DType.F32: "float",
    DType.F64: "double",
}
BITS = {1: "uchar", 2: "ushort", 4: "uint", 8: "ulong", 16: "ulong2"}
"""Type that moves an element of so many bytes."""

VECTOR = """
#define VECTOR_OF(type) VECTOR_OF_EXPANDED(type)
#define VECTOR_OF_EXPANDED(type) type##8
#define LANES 8
typedef VECTOR_OF(T) TV;
"""
"""Vectors of T of `LANES` elements: compilers for CPUs do not always find them across work-items."""

LANES = 8

LOCAL = 128
"""Work-group size of kernels over a flat range."""


def type_option(dtype: DType, name: str = "T") -> str:
    """Build option that makes `name` the C type of `dtype`."""
    return f"-D{name}={TYPES[dtype]}"


def bits_option(dtype: DType, name: str = "T") -> str:
    """Build option that makes `name` a type of the size of `dtype`."""
    return f"-D{name}={BITS[dtype.itemsize]}"


def int32(value: int) -> ScalarArgument:
    """A 32-bit integer argument.

    Raises
    ------
    InvalidRequest
        If the value needs more bits.
    """
    if not -(1 << 31) <= value < 1 << 31:
        raise InvalidRequest(
            f"an extent of {value} is more than the OpenCL version can take; stay below 2^31"
        )
    return ScalarArgument(DType.I32, value)


def image_group(width: int) -> tuple[int, int, int]:
    """Work-group of 64 items for planes that are `width` wide: no wider than the power of two above it."""
    columns = min(64, 1 << max(width - 1, 1).bit_length())
    return columns, 64 // columns, 1


def long(value: int) -> ScalarArgument:
    """A 64-bit integer argument."""
    return ScalarArgument(DType.I64, value)


def ulong(value: int) -> ScalarArgument:
    """An unsigned 64-bit integer argument."""
    return ScalarArgument(DType.U64, value)


def pointers(count: int) -> list[OpenCLArgument]:
    """The task's first `count` buffers as arguments."""
    return [BufferArgument(index) for index in range(count)]


def launch(
    entry: str,
    arguments: Sequence[OpenCLArgument],
    sizes: tuple[int, ...],
    local: tuple[int, ...] = (LOCAL,),
) -> OpenCLLaunch:
    """Launch over `sizes` work-items, rounded up to whole work-groups of `local`: the kernel checks its bounds."""
    rounded = tuple(-(-size // group) * group for size, group in zip(sizes, local, strict=True))
    return OpenCLLaunch(entry, tuple(arguments), rounded, local)
