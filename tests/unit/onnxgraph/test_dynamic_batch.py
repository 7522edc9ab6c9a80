"""Freeing a fixed batch: what can be freed is, with the same results; what cannot says why."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from polymux.core.errors import ConfigError, DeviceUnavailable
from polymux.onnxgraph.dynamic_batch import NotBatchable, with_dynamic_batch
from polymux.onnxgraph.file import load_model, save_model
from polymux.onnxgraph.inputs import batch_of, item_inputs

RNG = np.random.default_rng(1)


def constant(name: str, values: object, dtype: object = np.float32) -> Any:
    return numpy_helper.from_array(np.asarray(values, dtype), name)


def model(
    nodes: Sequence[Any],
    constants: Sequence[Any] = (),
    shape: Sequence[int | str] = (1, 4, 6),
    out: Sequence[int | str | None] | None = None,
    ir_version: int = 8,
) -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, out)
    inputs = [x] + [
        helper.make_tensor_value_info(c.name, c.data_type, c.dims) for c in constants if ir_version < 4
    ]
    graph = helper.make_graph(nodes, "g", inputs, [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=ir_version)


def run(made: onnx.ModelProto, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        made.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, {"x": x})[0]


def freed(made: onnx.ModelProto) -> onnx.ModelProto:
    return with_dynamic_batch(made, item_inputs("model.onnx", made))


FREE = {
    "flattening": (
        [helper.make_node("Reshape", ["x", "t"], ["y"])],
        [constant("t", [1, 24], np.int64)],
        (1, 24),
    ),
    "flattening with a free extent": (
        [helper.make_node("Reshape", ["x", "t"], ["y"])],
        [constant("t", [1, -1], np.int64)],
        (1, 24),
    ),
    "a target in a node": (
        [
            helper.make_node("Constant", [], ["t"], value=constant("v", [1, 6, 4], np.int64)),
            helper.make_node("Reshape", ["x", "t"], ["y"]),
        ],
        [],
        (1, 6, 4),
    ),
    "a shuffle of channels": (
        [
            helper.make_node("Reshape", ["x", "a"], ["p"]),
            helper.make_node("Transpose", ["p"], ["q"], perm=[0, 2, 1, 3]),
            helper.make_node("Reshape", ["q", "b"], ["y"]),
        ],
        [constant("a", [1, 2, 2, 6], np.int64), constant("b", [1, 4, 6], np.int64)],
        (1, 4, 6),
    ),
    "one target for data and for weights": (
        [
            helper.make_node("Reshape", ["w", "t"], ["v"]),
            helper.make_node("Reshape", ["x", "t"], ["z"]),
            helper.make_node("Mul", ["z", "v"], ["y"]),
        ],
        [constant("t", [1, 24], np.int64), constant("w", RNG.random(24))],
        (1, 24),
    ),
    "a class token": (
        [helper.make_node("Concat", ["token", "x"], ["y"], axis=1)],
        [constant("token", RNG.random((1, 1, 6)))],
        (1, 5, 6),
    ),
    "a class token that is computed, twice": (
        [
            helper.make_node("Mul", ["token", "token"], ["square"]),
            helper.make_node("Concat", ["x", "square"], ["z"], axis=-2),
            helper.make_node("Concat", ["square", "z"], ["y"], axis=1),
        ],
        [constant("token", RNG.random((1, 1, 6)))],
        (1, 6, 6),
    ),
    "a recurrent layer with initial states": (
        [
            helper.make_node("Transpose", ["x"], ["sequence"], perm=[1, 0, 2]),
            helper.make_node("LSTM", ["sequence", "w", "r", "", "", "h", "c"], ["", "last"], hidden_size=3),
            helper.make_node("Squeeze", ["last", "zero"], ["y"]),
        ],
        [
            constant("w", RNG.random((1, 12, 6))),
            constant("r", RNG.random((1, 12, 3))),
            constant("h", RNG.random((1, 1, 3))),
            constant("c", RNG.random((1, 1, 3))),
            constant("zero", [0], np.int64),
        ],
        (1, 3),
    ),
    "a sum over all but the batch": (
        [helper.make_node("ReduceMean", ["x"], ["y"], axes=[1, 2], keepdims=1)],
        [],
        (1, 1, 1),
    ),
}


@pytest.mark.parametrize("ir_version", [3, 8])
@pytest.mark.parametrize("what", FREE)
def test_a_batch_of_a_freed_model_gives_what_its_items_give(what: str, ir_version: int) -> None:
    nodes, constants, out = FREE[what]
    original = model(nodes, constants, out=out, ir_version=ir_version)
    untouched = original.SerializeToString()
    made = freed(original)
    assert original.SerializeToString() == untouched
    x = RNG.random((5, 4, 6), np.float32)
    alone = np.concatenate([run(original, item[None]) for item in x])
    np.testing.assert_allclose(run(made, x), alone, rtol=1e-6)
    onnx.checker.check_model(made)


BOUND = {
    "a mean over the batch": ([helper.make_node("ReduceMean", ["x"], ["y"], axes=[0])], "does not grow"),
    "a difference to the mean of the batch": (
        [helper.make_node("ReduceMean", ["x"], ["m"], axes=[0]), helper.make_node("Sub", ["x", "m"], ["y"])],
        "mixes them",
    ),
    "a removed batch": ([helper.make_node("Squeeze", ["x", "zero"], ["y"])], "fails on a batch of 3"),
    "a target that counts the batch in": (
        [helper.make_node("Reshape", ["x", "t"], ["y"])],
        "fails on a batch of 3",
    ),
}


@pytest.mark.parametrize("what", BOUND)
def test_a_model_that_cannot_be_freed_says_why(what: str) -> None:
    nodes, said = BOUND[what]
    constants = [constant("zero", [0], np.int64), constant("t", [4, 6], np.int64)]
    with pytest.raises(NotBatchable, match=said):
        freed(model(nodes, constants))


def test_a_batch_on_another_axis_is_freed_there() -> None:
    made = model([helper.make_node("Relu", ["x"], ["y"])], shape=(4, 1, 6))
    inputs = item_inputs("m", made, {"x": (4, "N", 6)})
    free = with_dynamic_batch(made, inputs)
    assert run(free, np.ones((4, 7, 6), np.float32)).shape == (4, 7, 6)


def test_inputs_are_described_by_the_file_and_completed_by_the_user() -> None:
    relu = [helper.make_node("Relu", ["x"], ["y"])]
    (fixed,) = item_inputs("m", model(relu))
    assert (str(fixed), fixed.axis, fixed.is_fixed) == ("x=Nx4x6", 0, True)
    (free,) = item_inputs("m", model(relu, shape=("batch", 4, 6)))
    assert (free.axis, free.is_fixed) == (0, False)
    assert batch_of([free], 3, RNG)["x"].shape == (3, 4, 6)
    (given,) = item_inputs("m", model(relu, shape=("b", 4, "w")), {"x": ("N", 4, 9)}, {"x": (2, 3)})
    values = batch_of([given], 2, RNG)["x"]
    assert values.shape == (2, 4, 9)
    assert 2 <= values.min() <= values.max() <= 3


@pytest.mark.parametrize(
    ("shape", "given", "said"),
    [
        (("b", 4, "w"), {}, r"batch|x=Nx4x224"),
        (("b", 4, 6), {"x": ("N", 4)}, "3 extents"),
        (("b", 4, 6), {"x": ("N", 5, 6)}, "extent 1 cannot be 5"),
        ((2, 4, 6), {}, "say where the batch is"),
        ((2, 4, 6), {"x": ("N", 4, 6)}, "fixed at 2"),
        (("b", 4, 6), {"z": ("N", 4)}, "'z'.*it has x"),
    ],
)
def test_shapes_that_are_missing_or_do_not_fit_are_errors(shape: Any, given: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        item_inputs("m", model([helper.make_node("Relu", ["x"], ["y"])], shape=shape), given)


@pytest.mark.parametrize("values", [(0, 300), (-1, 5), (0.2, 0.8)])
def test_values_that_an_input_cannot_have_are_errors(values: tuple[float, float]) -> None:
    made = model([helper.make_node("Relu", ["x"], ["y"])])
    made.graph.input[0].type.tensor_type.elem_type = TensorProto.UINT8
    with pytest.raises(ConfigError, match=r"values of x.*uint8 holds, 0 to 255"):
        item_inputs("m", made, {}, {"x": values})


def test_files_that_are_no_models_are_errors(tmp_path: Path) -> None:
    bad = tmp_path / "bad.onnx"
    for content in (b"", b"hello world, this is no model"):
        bad.write_bytes(content)
        with pytest.raises(ConfigError, match=r"bad\.onnx"):
            load_model(bad)
    with pytest.raises(ConfigError, match="No such file"):
        load_model(tmp_path / "none.onnx")
    with pytest.raises(ConfigError, match="can be written"):
        save_model(model([helper.make_node("Relu", ["x"], ["y"])]), bad / "below" / "m.onnx")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.onnx"]


def test_a_missing_package_is_an_error_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = model([helper.make_node("Relu", ["x"], ["y"])])
    inputs = item_inputs("m", made)
    for package, use in (
        ("onnx", lambda: load_model(tmp_path)),
        ("onnxruntime", lambda: freed_of(made, inputs)),
    ):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(DeviceUnavailable, match=rf"package {package} .*pip install 'polymux\[profile\]'"):
            use()
        monkeypatch.undo()


def freed_of(made: onnx.ModelProto, inputs: Any) -> None:
    with_dynamic_batch(made, inputs)
