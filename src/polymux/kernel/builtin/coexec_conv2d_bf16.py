"""coexec_conv2d_bf16: a part of a convolution of single precision, computed in bfloat16."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from polymux.core.dtype import DType
from polymux.core.implementation import CudaFunction, PythonFunction
from polymux.core.kernel_spec import BufferParam, KernelSpec, ScalarParam
from polymux.kernel.builtin.window import STEPS
from polymux.kernel.chunks import cuda_chunk, host
from polymux.kernel.chunks.parts import CONV_RANGES
from polymux.kernel.definition import Definition
from polymux.kernel.team import Team

SPEC = KernelSpec(
    "coexec_conv2d_bf16",
    inputs=(BufferParam("x", (DType.F32,)), BufferParam("weight", (DType.F32,))),
    outputs=(BufferParam("y", (DType.F32,)),),
    scalars=(*STEPS, ScalarParam("groups", DType.I32, 1), *CONV_RANGES),
    idempotent=True,
    doc="As coexec_conv2d, with x and weight rounded to bfloat16 and sums of single precision: the error is at most"
    " (2 / 256 + terms / 2^23) of the convolution of absolute values (3 / 256 by PyTorch, which rounds results too)."
    " On a cpu it needs one with AVX512-BF16, or PyTorch.",
)


def coexec_conv2d_bf16(
    x: NDArray[Any], weight: NDArray[Any], y: NDArray[Any], *, team: Team, **scalars: int
) -> None:
    """Images or output channels for each thread."""
    host.convolve(x, weight, y, team, "bf16", scalars)


def on_cuda(x: Any, weight: Any, y: Any, **scalars: int) -> None:
    """cuBLAS, on CuPy arrays."""
    cuda_chunk.convolve(x, weight, y, "bf16", scalars)


KERNEL = Definition(SPEC, (PythonFunction(coexec_conv2d_bf16, parallel=True), CudaFunction(on_cuda)))
