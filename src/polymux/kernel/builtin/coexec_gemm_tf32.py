"""coexec_gemm_tf32: a part of a matrix product of single precision, its factors rounded to TF32."""

from __future__ import annotations

from typing import Any

from polymux.core.dtype import DType
from polymux.core.implementation import CudaFunction
from polymux.core.kernel_spec import BufferParam, KernelSpec
from polymux.kernel.chunks import cuda_chunk
from polymux.kernel.chunks.parts import GEMM_SCALARS
from polymux.kernel.definition import Definition

SPEC = KernelSpec(
    "coexec_gemm_tf32",
    inputs=(BufferParam("a", (DType.F32,)), BufferParam("b", (DType.F32,))),
    outputs=(BufferParam("c", (DType.F32,)),),
    scalars=GEMM_SCALARS,
    idempotent=True,
    doc="As coexec_gemm, with factors rounded to TF32 and sums of single precision, by cuBLAS.",
)


def on_cuda(a: Any, b: Any, c: Any, **scalars: int) -> None:
    """cuBLAS, on CuPy arrays."""
    cuda_chunk.multiply(a, b, c, "tf32", scalars)


KERNEL = Definition(SPEC, (CudaFunction(on_cuda),))
