"""Layers of a served model that all devices compute together: taken apart, run, and the same as the whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polymux.client import Client
from polymux.coexec import Session
from polymux.coexec.nodes import SessionNode, mark_model
from polymux.core.errors import InvalidRequest
from polymux.onnxgraph.heavy import DOMAIN, HeavyNode, has_heavy_nodes, mark, plain, take_apart
from polymux.serving.heavy_layers import HeavyLayers
from polymux.serving.model_config_pb2 import ModelConfig
from polymux.serving.registered_model import register_model

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")


def model(pads: tuple[int, ...] = (1, 1, 1, 1)) -> Any:
    """Conv, Relu, Conv with a bias, Flatten, Gemm with a transposed weight, MatMul."""
    helper, generator = onnx.helper, np.random.default_rng(2)

    def weight(name: str, *shape: int) -> Any:
        values = generator.standard_normal(shape, dtype=np.float32) / 4
        return onnx.numpy_helper.from_array(values, name)

    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], name="conv0", pads=pads, kernel_shape=[3, 3]),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("Conv", ["b", "w1", "b1"], ["c"], name="conv1", strides=[2, 2]),
        helper.make_node("Flatten", ["c"], ["d"], name="flatten"),
        helper.make_node("Gemm", ["d", "w2", "b2"], ["e"], name="gemm", transB=1, alpha=0.5, beta=2.0),
        helper.make_node("MatMul", ["e", "w3"], ["y"], name="matmul"),
    ]
    weights = [
        weight("w0", 8, 3, 3, 3),
        weight("w1", 4, 8, 3, 3),
        weight("b1", 4),
        weight("w2", 10, 4 * 49),
        weight("b2", 10),
        weight("w3", 10, 5),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 3, 16, 16])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 5])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def answer(whole: Any, x: Any) -> Any:
    return ort.InferenceSession(whole.SerializeToString()).run(None, {"x": x})[0]


@pytest.mark.parametrize(
    "names", [("conv0",), ("conv1", "gemm"), ("conv0", "conv1", "gemm", "matmul"), ("gemm", "matmul")]
)
def test_the_pieces_give_what_the_whole_gives(session: Session, names: tuple[str, ...]) -> None:
    whole, x = model(), np.random.default_rng(5).standard_normal((2, 3, 16, 16), dtype=np.float32)
    marked = mark(whole, names)
    assert has_heavy_nodes(marked)
    assert not has_heavy_nodes(whole)
    values: dict[str, Any] = {"x": x}
    for piece in take_apart(marked):
        if isinstance(piece, HeavyNode):
            assert piece.name in names
            values[piece.writes] = SessionNode(session, piece).run(values)
        else:
            runner = ort.InferenceSession(piece.model.SerializeToString())
            given = {name: np.asarray(values[name]) for name in piece.reads}
            values.update(zip(piece.writes, runner.run(list(piece.writes), given), strict=True))
    np.testing.assert_allclose(values["y"], answer(whole, x), rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(answer(plain(marked), x), answer(whole, x))


def test_a_served_model_with_marked_layers_answers_as_the_whole(client: Client, tmp_path: Path) -> None:
    import asyncio

    from polymux.core.dtype import DType

    source, target = tmp_path / "source.onnx", tmp_path / "model.onnx"
    onnx.save(model(), str(source))
    x = np.random.default_rng(6).standard_normal((3, 3, 16, 16), dtype=np.float32)
    assert mark_model(source, target, {"x": x}, least_flops=5e4) == ("conv0", "conv1")
    layers = HeavyLayers()
    apart = layers.look(target)
    assert apart is not None
    assert layers.look(source) is None
    registered = register_model(client, "marked", 1, apart.path, ModelConfig())
    runner = layers.runner(client, registered, apart, "cpu:0")
    given = runner.allocate(x.shape, DType.F32)
    given.numpy()[...] = x
    for _ in range(3):
        (result,) = asyncio.run(runner.run([given]))
        np.testing.assert_allclose(result.numpy(), answer(model(), x), rtol=1e-3, atol=1e-4)
        result.close()
    runner.close()
    layers.close()


@pytest.mark.parametrize(
    ("made", "names", "said"),
    [
        (model(), ("relu",), "only Conv, Gemm, MatMul can"),
        (model(), ("conv9",), "no node conv9"),
        (model(pads=(0, 0, 1, 1)), ("conv0",), "differs from side to side"),
    ],
)
def test_what_cannot_be_marked_is_named(made: Any, names: tuple[str, ...], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        mark(made, names)


def test_an_unknown_node_of_the_domain_is_named() -> None:
    made = mark(model(), ("conv0",))
    made.graph.node[1].domain = DOMAIN
    with pytest.raises(InvalidRequest, match=f"domain '{DOMAIN}' has no Relu"):
        plain(made)


def test_a_model_without_heavy_layers_is_not_written(tmp_path: Path) -> None:
    source = tmp_path / "source.onnx"
    onnx.save(model(), str(source))
    with pytest.raises(InvalidRequest, match="has no Conv, Gemm or MatMul of 1e\\+12"):
        mark_model(source, tmp_path / "t.onnx", {"x": np.zeros((1, 3, 16, 16), np.float32)}, 1e12)
    assert not (tmp_path / "t.onnx").exists()
