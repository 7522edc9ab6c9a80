"""Ways to compute a chunk: their numbers, what is missing, and models of a single node."""

from __future__ import annotations

import numpy as np
import pytest

from polymux.core.errors import InvalidRequest
from polymux.kernel.chunks import methods
from polymux.kernel.chunks.methods import METHODS, choose, methods_of
from polymux.kernel.chunks.one_node import NodeModel, one_node_model


def test_numbers_and_names_are_unique_and_zero_is_the_default() -> None:
    assert (
        len({method.number for method in METHODS}) == len({method.name for method in METHODS}) == len(METHODS)
    )
    assert all(method.number > 0 for method in METHODS)
    assert choose(0, "cpu", "own") is choose(1, "cpu", "own") is methods_of("cpu", "own")[0]


def test_numbers_that_calibrations_store_stay_what_they_were() -> None:
    assert {method.name: method.number for method in METHODS} == {
        "numpy": 1,
        "onnxruntime": 2,
        "torch": 3,
        "torch-bf16": 4,
        "native-bf16": 5,
        "tiles": 10,
        "packed": 11,
        "cublas": 20,
        "cublas-tf32": 21,
        "cublas-fp16": 22,
        "cublas-bf16": 23,
    }


def test_a_method_of_another_precision_or_device_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(InvalidRequest, match=r"method is 11, expected 0 .* 1 \(numpy\)"):
        choose(11, "cpu", "own")


def test_a_method_whose_package_is_missing_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InvalidRequest, match="method torch needs the package torch"):
        choose(3, "cpu", "own")
    assert choose(1, "cpu", "own").is_installed


def test_a_model_of_a_single_node_is_one_that_onnx_knows() -> None:
    onnx = pytest.importorskip("onnx")
    attributes = (("strides", (2, 1)), ("pads", (0, 300, 0, 300)), ("group", 3))
    model = onnx.load_from_string(one_node_model(NodeModel("Conv", 11, (4, 4, 4), attributes)))
    onnx.checker.check_model(model)
    (node,) = model.graph.node
    found = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
    assert found == {"strides": [2, 1], "pads": [0, 300, 0, 300], "group": 3}
    assert [its.type.tensor_type.elem_type for its in model.graph.input] == [11, 11]


def test_a_model_of_a_single_node_runs() -> None:
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(one_node_model(NodeModel("MatMul", 1, (2, 2, 2))))
    a, b = np.ones((2, 3), "f4"), np.full((3, 4), 2, "f4")
    np.testing.assert_array_equal(session.run(None, {"a": a, "b": b})[0], a @ b)
