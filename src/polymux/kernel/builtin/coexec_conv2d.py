"""coexec_conv2d: a part of a convolution, for devices that compute it together."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from polymux.core.dtype import DType
from polymux.core.implementation import CudaFunction, OpenCLSource, PythonFunction
from polymux.core.kernel_spec import BufferParam, KernelSpec, ScalarParam
from polymux.kernel.builtin import operands as check
from polymux.kernel.builtin.window import STEPS
from polymux.kernel.chunks import cuda_chunk, host
from polymux.kernel.chunks.opencl_conv import SOURCE, plan
from polymux.kernel.chunks.parts import CONV_RANGES
from polymux.kernel.definition import Definition
from polymux.kernel.team import Team

SPEC = KernelSpec(
    "coexec_conv2d",
    inputs=(BufferParam("x", check.FLOATS), BufferParam("weight", check.FLOATS)),
    outputs=(BufferParam("y", check.FLOATS),),
    scalars=(*STEPS, ScalarParam("groups", DType.I32, 1), *CONV_RANGES),
    idempotent=True,
    doc="As conv2d, for `count` images from `first` and `output_count` output channels from `first_output` (-1: to the"
    " end; whole groups, or a part of one); the rest of y stays as it is. method and tile as in coexec_gemm.",
)


def coexec_conv2d(
    x: NDArray[Any], weight: NDArray[Any], y: NDArray[Any], *, team: Team, **scalars: int
) -> None:
    """Images or output channels for each thread, by the library of the method."""
    host.convolve(x, weight, y, team, "own", scalars)


def on_cuda(x: Any, weight: Any, y: Any, **scalars: int) -> None:
    """cuBLAS, on CuPy arrays."""
    cuda_chunk.convolve(x, weight, y, "own", scalars)


KERNEL = Definition(
    SPEC, (PythonFunction(coexec_conv2d, parallel=True), OpenCLSource(SOURCE, plan), CudaFunction(on_cuda))
)
