"""coexec_conv2d_tf32: a part of a convolution of single precision, its factors rounded to TF32."""

from __future__ import annotations

from typing import Any

from polymux.core.dtype import DType
from polymux.core.implementation import CudaFunction
from polymux.core.kernel_spec import BufferParam, KernelSpec, ScalarParam
from polymux.kernel.builtin.window import STEPS
from polymux.kernel.chunks import cuda_chunk
from polymux.kernel.chunks.parts import CONV_RANGES
from polymux.kernel.definition import Definition

SPEC = KernelSpec(
    "coexec_conv2d_tf32",
    inputs=(BufferParam("x", (DType.F32,)), BufferParam("weight", (DType.F32,))),
    outputs=(BufferParam("y", (DType.F32,)),),
    scalars=(*STEPS, ScalarParam("groups", DType.I32, 1), *CONV_RANGES),
    idempotent=True,
    doc="As coexec_conv2d, with factors rounded to TF32 and sums of single precision, by cuBLAS.",
)


def on_cuda(x: Any, weight: Any, y: Any, **scalars: int) -> None:
    """cuBLAS, on CuPy arrays."""
    cuda_chunk.convolve(x, weight, y, "tf32", scalars)


KERNEL = Definition(SPEC, (CudaFunction(on_cuda),))
