"""coexec_gemm: a part of a matrix product, for devices that compute it together."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from polymux.core.implementation import CudaFunction, OpenCLSource, PythonFunction
from polymux.core.kernel_spec import BufferParam, KernelSpec
from polymux.kernel.chunks import cuda_chunk, host
from polymux.kernel.chunks.opencl_gemm import SOURCE, plan
from polymux.kernel.chunks.parts import GEMM_SCALARS, NUMBERS
from polymux.kernel.definition import Definition
from polymux.kernel.team import Team

SPEC = KernelSpec(
    "coexec_gemm",
    inputs=(BufferParam("a", NUMBERS), BufferParam("b", NUMBERS)),
    outputs=(BufferParam("c", NUMBERS),),
    scalars=GEMM_SCALARS,
    idempotent=True,
    doc="c[rows, columns] = a[rows] @ b[:, columns] of matrices of one dtype: `count` rows from `first` and `columns`"
    " columns from `first_column` (-1: to the end); the rest of c stays as it is. OpenCL computes f4 and f8, a cpu"
    " every NumPy type. method and tile are what 'polymux calibrate' found to be best on the device (0: the default).",
)


def coexec_gemm(a: NDArray[Any], b: NDArray[Any], c: NDArray[Any], *, team: Team, **scalars: int) -> None:
    """Rows for each thread, by the library of the method."""
    host.multiply(a, b, c, team, "own", scalars)


def on_cuda(a: Any, b: Any, c: Any, **scalars: int) -> None:
    """cuBLAS, on CuPy arrays."""
    cuda_chunk.multiply(a, b, c, "own", scalars)


KERNEL = Definition(
    SPEC, (PythonFunction(coexec_gemm, parallel=True), OpenCLSource(SOURCE, plan), CudaFunction(on_cuda))
)
