"""coexec_gemm_bf16: a part of a matrix product of single precision, computed in bfloat16."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from polymux.core.dtype import DType
from polymux.core.implementation import CudaFunction, PythonFunction
from polymux.core.kernel_spec import BufferParam, KernelSpec
from polymux.kernel.chunks import cuda_chunk, host
from polymux.kernel.chunks.parts import GEMM_SCALARS
from polymux.kernel.definition import Definition
from polymux.kernel.team import Team

SPEC = KernelSpec(
    "coexec_gemm_bf16",
    inputs=(BufferParam("a", (DType.F32,)), BufferParam("b", (DType.F32,))),
    outputs=(BufferParam("c", (DType.F32,)),),
    scalars=GEMM_SCALARS,
    idempotent=True,
    doc="As coexec_gemm, with a and b rounded to bfloat16 and sums of single precision:"
    " |c - a @ b| <= (2 / 256 + k / 2^23) (|a| @ |b|) (3 / 256 by PyTorch, which rounds results too). On a"
    " cpu it needs one with AVX512-BF16, or PyTorch.",
)


def coexec_gemm_bf16(
    a: NDArray[Any], b: NDArray[Any], c: NDArray[Any], *, team: Team, **scalars: int
) -> None:
    """Rows for each thread."""
    host.multiply(a, b, c, team, "bf16", scalars)


def on_cuda(a: Any, b: Any, c: Any, **scalars: int) -> None:
    """cuBLAS, on CuPy arrays."""
    cuda_chunk.multiply(a, b, c, "bf16", scalars)


KERNEL = Definition(SPEC, (PythonFunction(coexec_gemm_bf16, parallel=True), CudaFunction(on_cuda)))
