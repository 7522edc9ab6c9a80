"""Chunks on the host's cores: a part for each thread of the share, each computed by a library with one thread.

Libraries are kept from using threads of their own: those of several streams would meet on the same cores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from polymux.kernel.builtin import operands as check
from polymux.kernel.chunks import native_chunk, numpy_chunk, onnx_chunk
from polymux.kernel.chunks.methods import Method, Precision, choose
from polymux.kernel.chunks.parts import ConvPart, conv_part, gemm_part
from polymux.kernel.chunks.torch_chunk import TorchChunk
from polymux.kernel.team import Team

Array = NDArray[Any]
PARALLEL_WORK = 1 << 21
"""Multiplications from which on a chunk is split over the team."""
_TORCH, _LOWER = TorchChunk(), TorchChunk(lower=True)
_MULTIPLY: dict[str, Callable[[Array, Array, Array], None]] = {
    "numpy": numpy_chunk.multiply,
    "onnxruntime": onnx_chunk.multiply,
    "torch": _TORCH.multiply,
    "native-bf16": native_chunk.multiply,
    "torch-bf16": _LOWER.multiply,
}
_CONVOLVE: dict[str, Callable[[Array, Array, Array, ConvPart], None]] = {
    "numpy": numpy_chunk.convolve,
    "onnxruntime": onnx_chunk.convolve,
    "torch": _TORCH.convolve,
    "native-bf16": native_chunk.convolve,
    "torch-bf16": _LOWER.convolve,
}


def multiply(a: Array, b: Array, c: Array, team: Team, precision: Precision, scalars: check.Scalars) -> None:
    """Compute a part of ``c = a @ b``.

    Raises
    ------
    InvalidRequest
        For operands, a range or a method that cannot be.
    """
    part = gemm_part({"a": a, "b": b, "c": c}, scalars)
    product = _MULTIPLY[_method(scalars, precision).name]
    left, right, out = a[part.rows], b[:, part.columns], c[part.rows, part.columns]
    if out.size == 0:
        return

    def rows(begin: int, end: int) -> None:
        product(left[begin:end], right, out[begin:end])

    def columns(begin: int, end: int) -> None:
        product(left, right[:, begin:end], out[:, begin:end])

    if part.height * part.width * part.depth < PARALLEL_WORK:
        rows(0, part.height)
    elif part.height >= part.width // 4:
        team.parallel_for(part.height, rows, align=8)
    else:
        team.parallel_for(part.width, columns, align=16)


def convolve(
    x: Array, weight: Array, y: Array, team: Team, precision: Precision, scalars: check.Scalars
) -> None:
    """Compute a part of ``y = conv2d(x, weight)``.

    Raises
    ------
    InvalidRequest
        For operands, a range or a method that cannot be.
    """
    part = conv_part({"x": x, "weight": weight, "y": y}, scalars)
    correlation = _CONVOLVE[_method(scalars, precision).name]
    given, factors = x[part.images, part.channels], weight[part.outputs]
    out = y[part.images, part.outputs]
    if out.size == 0:
        return

    def images(begin: int, end: int) -> None:
        correlation(given[begin:end], factors, out[begin:end], part)

    def outputs(begin: int, end: int) -> None:
        correlation(given, factors[begin:end], out[:, begin:end], part)

    if part.count * part.out_channels * part.positions * part.depth < PARALLEL_WORK:
        images(0, part.count)
    elif part.count >= team.size or part.groups > 1:
        team.parallel_for(part.count, images)
    else:
        team.parallel_for(part.out_channels, outputs, align=16)


def _method(scalars: check.Scalars, precision: Precision) -> Method:
    return choose(int(scalars["method"]), "cpu", precision)
