"""Chunks by onnxruntime, in the calling thread: sessions of a single node."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polymux.core.errors import InvalidRequest
from polymux.kernel.chunks.one_node import NodeModel, one_node_model
from polymux.kernel.chunks.parts import ConvPart

Array = NDArray[Any]
_ELEMENTS = {"MatMul": {"float32": 1, "float64": 11}, "Conv": {"float32": 1}}
"""What onnxruntime computes on a cpu: ``TensorProto.DataType`` of the ONNX standard."""
_making = threading.Lock()


def multiply(a: Array, b: Array, c: Array) -> None:
    """``c = a @ b``; copies what is not contiguous."""
    _run(NodeModel("MatMul", _element("MatMul", a), (2, 2, 2)), [a, b], c)


def convolve(x: Array, weight: Array, y: Array, part: ConvPart) -> None:
    """``y = conv2d(x, weight)``."""
    h, w = part.h, part.w
    attributes = (
        ("strides", (h.stride, w.stride)),
        ("pads", (h.padding, w.padding, h.padding, w.padding)),
        ("dilations", (h.dilation, w.dilation)),
        ("group", part.groups),
    )
    _run(NodeModel("Conv", _element("Conv", x), (4, 4, 4), attributes), [x, weight], y)


def _run(model: NodeModel, inputs: Sequence[Array], output: Array) -> None:
    if output.size == 0:
        return
    if any(array.size == 0 for array in inputs):
        output[...] = 0
        return
    with _making:
        session = _session(model)
    into = output if output.flags.c_contiguous else np.empty(output.shape, output.dtype)
    binding = session.io_binding()
    held = [np.ascontiguousarray(array) for array in inputs]
    for name, array in zip("ab", held, strict=True):
        binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
    binding.bind_output("c", "cpu", 0, into.dtype.type, into.shape, into.ctypes.data)
    session.run_with_iobinding(binding)
    if into is not output:
        output[...] = into


@lru_cache(maxsize=64)
def _session(model: NodeModel) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.enable_mem_pattern = False  # shapes change from chunk to chunk
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(one_node_model(model), options, providers=["CPUExecutionProvider"])


def _element(op: str, array: Array) -> int:
    known = _ELEMENTS[op]
    found = known.get(array.dtype.name)
    if found is None:
        raise InvalidRequest(
            f"method onnxruntime computes {op} of {' and '.join(known)}, not {array.dtype}; use method numpy"
        )
    return found
