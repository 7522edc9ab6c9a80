"""The matrix product as an operation of all devices: split by rows or by columns of the result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from polymux.coexec.operation import Array, ChunkKernel, Operation, Shape, Way
from polymux.core.errors import InvalidRequest
from polymux.perfmodel.coexec.problem import gemm_problem

FLOATS = ("float32", "float64")


class Matmul(Operation):
    """``a @ b`` of two matrices (m, k) and (k, n)."""

    name = "gemm"
    kernels = (
        ChunkKernel("coexec_gemm", dtypes=FLOATS),
        ChunkKernel("coexec_gemm_bf16", "bf16", ("float32",)),
        ChunkKernel("coexec_gemm_tf32", "tf32", ("float32",)),
        ChunkKernel("coexec_gemm_fp16", "fp16", ("float32",)),
    )

    def outputs(self, *inputs: Array, **parameters: Any) -> Sequence[tuple[Shape, np.dtype[Any]]]:  # noqa: ARG002
        """Check that the matrices fit."""
        a, b = inputs
        if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
            raise InvalidRequest(
                f"matmul of shapes {a.shape} and {b.shape}: the last extent of a must be the first of b"
            )
        return [((a.shape[0], b.shape[1]), a.dtype)]

    def of_nothing(self, results: Sequence[Array]) -> None:
        """Fill in sums over nothing."""
        for result in results:
            result[...] = 0

    def ways(self, *inputs: Array, **parameters: Any) -> Sequence[Way]:  # noqa: ARG002
        """Split by rows, all of b for everybody; or by columns, all of a for everybody."""
        a, b = inputs
        m, k, n = a.shape[0], a.shape[1], b.shape[1]
        return (
            Way(
                gemm_problem(m, n, k, itemsize=a.itemsize, by="rows"),
                inputs=(0, None),
                outputs=(0,),
                across_inputs=(None, 1),
                across_outputs=(1,),
            ),
            Way(
                gemm_problem(m, n, k, itemsize=a.itemsize, by="columns"),
                inputs=(None, 1),
                outputs=(1,),
                across_inputs=(0, None),
                across_outputs=(0,),
                first="first_column",
                count="columns",
            ),
        )


MATMUL = Matmul()
