"""What the OpenCL versions of the built-in kernels share: names of types, launches over a range.

Programs are specialised by build options (``-DT=float``), one program per dtype that is used. Where a kernel promises
the same bits as the native version, its source begins with `EXACT`.
"""

from __future__ import annotations

from collections.abc import Sequence

from polymux.core.dtype import DType
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

LOCAL = 128
"""Work-group size of kernels over a flat range."""


def type_option(dtype: DType, name: str = "T") -> str:
    """Build option that makes `name` the C type of `dtype`."""
    return f"-D{name}={TYPES[dtype]}"


def bits_option(dtype: DType, name: str = "T") -> str:
    """Build option that makes `name` a type of the size of `dtype`."""
    return f"-D{name}={BITS[dtype.itemsize]}"


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
