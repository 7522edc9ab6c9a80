"""Layers of a served model that all devices compute together: taken apart, run, and the same as the whole."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from polymux.client import Buffer, Client
from polymux.coexec import Session
from polymux.coexec.nodes import SessionNode, mark_model
from polymux.core.dtype import DType
from polymux.core.errors import Closed, InvalidRequest
from polymux.onnxgraph.heavy import DOMAIN, HeavyNode, has_heavy_nodes, mark, plain, take_apart
from polymux.serving import heavy_layers
from polymux.serving.cutting import Cutter, parse_partition
from polymux.serving.errors import ModelLoadError
from polymux.serving.heavy_layers import HeavyLayers, HeavyRunner
from polymux.serving.kernel_runner import KernelRunner
from polymux.serving.loader import DirectLoader
from polymux.serving.model_config_pb2 import ModelConfig
from polymux.serving.registered_model import register_model
from polymux.serving.scheduling import loading
from polymux.serving.scheduling.settings import SchedulingOptions
from polymux.serving.scheduling.statistics import Statistics

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


@pytest.fixture
def served(client: Client, tmp_path: Path) -> Iterator[Served]:
    made = Served(client, tmp_path)
    yield made
    made.layers.close()


class Served:
    """A model of which all but Relu and Flatten is marked."""

    def __init__(self, client: Client, folder: Path) -> None:
        self.client = client
        self.path = folder / "model.onnx"
        onnx.save(mark(model(), ("conv0", "conv1", "gemm", "matmul")), str(self.path))
        self.layers = HeavyLayers()
        self.x = np.random.default_rng(6).standard_normal((3, 3, 16, 16), dtype=np.float32)

    def runner(self) -> HeavyRunner:
        apart = self.layers.look(self.path)
        assert apart is not None
        registered = register_model(self.client, "served", 1, apart.path, ModelConfig())
        return self.layers.runner(self.client, registered, apart, "cpu:0")

    def given(self, runner: HeavyRunner) -> Buffer:
        given = runner.allocate(self.x.shape, DType.F32)
        given.numpy()[...] = self.x
        return given


def test_what_lies_between_goes_as_soon_as_nobody_reads_it_any_more(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    results: list[Any] = []
    open_before: list[int] = []
    run = SessionNode.run

    def watched(node: SessionNode, values: Any) -> Any:
        open_before.append(sum(not result.buffer.closed for result in results))
        results.append(run(node, values))
        return results[-1]

    monkeypatch.setattr(SessionNode, "run", watched)
    runner = served.runner()
    (result,) = asyncio.run(runner.run([served.given(runner)]))
    np.testing.assert_allclose(result.numpy(), answer(model(), served.x), rtol=1e-3, atol=1e-4)
    assert len(results) == 4
    assert max(open_before) <= 1
    runner.close()


def test_a_cancelled_request_leaves_no_result_and_closing_waits_for_its_layer(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, gate = threading.Event(), threading.Event()
    results: list[Any] = []
    run = SessionNode.run

    def held(node: SessionNode, values: Any) -> Any:
        begun.set()
        assert gate.wait(30)
        results.append(run(node, values))
        return results[-1]

    monkeypatch.setattr(SessionNode, "run", held)
    runner = served.runner()
    given = served.given(runner)

    async def scenario() -> None:
        request = asyncio.create_task(runner.run([given]))
        await asyncio.to_thread(begun.wait, 30)
        request.cancel()
        closing = asyncio.create_task(asyncio.to_thread(runner.close))
        await asyncio.sleep(0.05)
        assert not closing.done()
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await request
        await closing

    asyncio.run(scenario())
    assert [result.buffer.closed for result in results] == [True]
    with pytest.raises(Closed):
        asyncio.run(runner.run([given]))


@pytest.mark.parametrize("last", ["piece-4", "served/1"])
def test_a_model_of_which_a_piece_is_refused_leaves_nothing_open(
    served: Served, last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Any] = []

    class Watched(KernelRunner):
        closed = False

        def __init__(self, client: Client, spec: Any, device: str | None) -> None:
            if spec.name.endswith(last):
                raise ModelLoadError("no room")
            super().__init__(client, spec, device)
            opened.append(self)

        def close(self) -> None:
            super().close()
            self.closed = True

    class WatchedSession(Session):
        closed = False

        def __init__(self, client: Client) -> None:
            super().__init__(client)
            opened.append(self)

        def close(self) -> None:
            super().close()
            self.closed = True

    monkeypatch.setattr(heavy_layers, "KernelRunner", Watched)
    monkeypatch.setattr(heavy_layers, "Session", WatchedSession)
    with pytest.raises(ModelLoadError, match="no room"):
        served.runner()
    assert len(opened) > 1
    assert all(each.closed for each in opened)


def test_what_was_learned_is_kept_when_the_server_is_gone() -> None:
    calls: list[str] = []
    session: Any = SimpleNamespace(
        client=SimpleNamespace(closed=False, server_gone=True),
        save=lambda: calls.append("save"),
        close=lambda: calls.append("close"),
    )
    heavy_layers._close_session(session)
    session.client.server_gone = False
    heavy_layers._close_session(session)
    assert calls == ["save", "close"]


@pytest.mark.parametrize("flag", ["served=8", "8", None])
def test_a_wish_for_parts_of_a_model_with_marked_layers_is_not_passed_over(
    served: Served, flag: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    config = ModelConfig()
    if flag is None:
        config.parameters["partition"].string_value = "8"
    loader = DirectLoader("cpu:0", Cutter([parse_partition(flag)] if flag else []))
    load = loader.load(served.client, "served", 1, served.path, config)
    if flag == "8":
        asyncio.run(load).runner.close()
        assert "model served is not cut into parts: all devices compute its marked layers" in caplog.text
    else:
        with pytest.raises(ModelLoadError, match="all devices compute its marked layers; take the wish"):
            asyncio.run(load)
    loader.let_go()


def test_the_profile_of_a_scheduled_model_is_that_of_the_operators_file(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []

    def read(_: Path, path: Path, __: Any) -> dict[str, Any]:
        asked.append(path)
        return {}

    monkeypatch.setattr(loading, "read_surfaces", read)

    async def scenario() -> None:
        options = SchedulingOptions("max_throughput", tmp_path / "profiles")
        loader = loading.ScheduledLoader(options, "cpu:0", Statistics())
        await loader.load(served.client, "served", 1, served.path, ModelConfig())
        loader.let_go()

    asyncio.run(scenario())
    assert asked == [served.path]


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
