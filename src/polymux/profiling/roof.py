"""What a share of a device can do at most: a product of large matrices, a sum of large arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from polymux.onnxgraph.file import save_model
from polymux.onnxgraph.inputs import item_inputs
from polymux.onnxgraph.output_shapes import output_shapes
from polymux.onnxgraph.packages import import_onnx
from polymux.profiles import ProfileStore, Roof
from polymux.profiling.options import ProfileOptions
from polymux.profiling.repeats import repeat
from polymux.profiling.target import Target, batches_on, registered

MATRIX = 768
ARRAY_NBYTES = 1 << 26
"""Beyond the caches of most processors; read once and written once."""


def measure_roofs(target: Target, store: ProfileStore, folder: Path, options: ProfileOptions) -> None:
    """Measure the shares whose roof the store does not have.

    Parameters
    ----------
    target : Target
    store : ProfileStore
        Open for writing; knows the device.
    folder : pathlib.Path
        For the two models that are run.
    options : ProfileOptions

    References
    ----------
    Williams, Waterman, Patterson: Roofline. Communications of the ACM 52(4), 2009.
    """
    stored = {} if options.again else store.roofs(target.identity.key)
    missing = [units for units in target.shares(options.units) if units not in stored]
    if not missing:
        return
    product_ns = _times(target, missing, _product(), folder / "product.onnx", options)
    sum_ns = _times(target, missing, _sum(), folder / "sum.onnx", options)
    for units in missing:
        flops = 2 * MATRIX**3 / (product_ns[units] / 1e9)
        bandwidth = 2 * ARRAY_NBYTES / (sum_ns[units] / 1e9)
        store.put_roof(target.identity.key, Roof(units, flops, bandwidth))


def _times(
    target: Target, shares: list[int], model: Any, path: Path, options: ProfileOptions
) -> dict[int, int]:
    save_model(model, path)
    inputs = item_inputs(path.name, model)
    outputs = output_shapes(model, inputs, 1)
    times = {}
    with registered(target.client, f"roof:{path.stem}", path) as kernel:
        for units in shares:
            with batches_on(target, units, kernel, inputs, outputs, 1) as once:
                times[units] = repeat(once, options).min_ns  # the best is what the device can do
    return times


def _product() -> Any:
    helper = import_onnx().helper
    weights = np.full((MATRIX, MATRIX), 0.5, np.float32)
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    return _model([node], (1, MATRIX, MATRIX), [import_onnx().numpy_helper.from_array(weights, "w")])


def _sum() -> Any:
    node = import_onnx().helper.make_node("Add", ["x", "one"], ["y"])
    one = import_onnx().numpy_helper.from_array(np.ones(1, np.float32), "one")
    return _model([node], (1, ARRAY_NBYTES // 4), [one])


def _model(nodes: list[Any], shape: tuple[int, ...], constants: list[Any]) -> Any:
    onnx = import_onnx()
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    x, y = (helper.make_tensor_value_info(name, kind, shape) for name in "xy")
    graph = helper.make_graph(nodes, "roof", [x], [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
