"""The sessions of one model on several shares: the same results, with the weights once in memory."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polymux.core.device_spec import Share
from polymux.core.implementation import OnnxModel
from polymux.core.task_view import Access
from polymux.device import onnx_session, onnx_weights
from polymux.device.cores import allowed_cores
from polymux.device.cpu import CpuDevice
from polymux.device.onnx_model import import_onnxruntime, kernel_spec
from polymux.device.protocol import LaunchError
from polymux.device.registry import discover
from tests.contract.device_rig import Rig
from tests.contract.test_device_onnx import info, node, save

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
T = onnx.TensorProto
CORES = allowed_cores()
several = pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
RNG = np.random.default_rng(3)


def constant(name: str, *shape: int) -> Any:
    return onnx.numpy_helper.from_array(RNG.standard_normal(shape).astype(np.float32), name)


@pytest.fixture
def network(tmp_path: Path) -> str:
    """Return a model with convolutions and a product, which onnxruntime packs in different ways."""
    return save(
        tmp_path / "network.onnx",
        [
            node("Conv", "x W B", "c", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
            node("Relu", "c", "r"),
            node("GlobalAveragePool", "r", "p"),
            node("Flatten", "p", "f"),
            node("MatMul", "f M", "y"),
        ],
        [info("x", T.FLOAT, ["n", 16, 12, 12])],
        [info("y", T.FLOAT, ["n", 40])],
        (constant("W", 32, 16, 3, 3), constant("B", 32), constant("M", 32, 40)),
    )


@dataclass
class Shared:
    """A device of two cores with all its streams open, as in a server."""

    device: CpuDevice
    rigs: list[Rig]

    def run(self, path: str, x: Any) -> list[Any]:
        """Run a model with 40 outputs on every share."""
        spec, model, results = kernel_spec(path, "network"), OnnxModel(path), []
        for rig in self.rigs:
            y = rig.put(np.zeros((len(x), 40), np.float32), Access.WRITE)
            rig.run(spec, model, [rig.put(x), y])
            results.append(rig.get(y))
        return results


@pytest.fixture
def shared() -> Iterator[Shared]:
    if len(CORES) < 2:
        pytest.skip("needs two cores")
    (made, *_), _ = discover([f"cpu:{CORES[0]},{CORES[1]},shares=nested"])
    assert isinstance(made, CpuDevice)
    yield Shared(made, [Rig(made, share) for share in made.spec.shares])
    made.close()


def test_every_share_gives_what_a_session_of_its_own_gives(shared: Shared, network: str) -> None:
    x = RNG.standard_normal((3, 16, 12, 12)).astype(np.float32)
    session = import_onnxruntime().InferenceSession(network)
    (expected,) = session.run(None, {"x": x})
    for result in shared.run(network, x):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)
    assert shared.device.counters() == {"onnx_sessions": 2, "onnx_models_not_shared": 0}


def test_single_cores_have_one_session_in_common(shared: Shared, network: str) -> None:
    spec, model = kernel_spec(network, "network"), OnnxModel(network)
    prepared = [rig.stream.prepare(spec, model) for rig in shared.rigs]
    whole, first, second = (each._session for each in prepared)  # type: ignore[attr-defined]
    assert first is second
    assert whole is not first
    assert whole.mapped is first.mapped


def test_a_device_whose_streams_need_one_session_writes_no_files(network: str) -> None:
    (device, *_), _ = discover([f"cpu:{CORES[0]},streams=2"])
    stream = device.open_stream(Share())
    prepared = stream.prepare(kernel_spec(network, "network"), OnnxModel(network))
    assert prepared._session.mapped is None  # type: ignore[attr-defined]
    device.close()


def test_weights_that_an_application_might_have_given_are_part_of_what_is_written(
    shared: Shared, tmp_path: Path
) -> None:
    """Models of IR version 3 list their weights as inputs; what is computed from such a one beforehand is none."""
    shape = onnx.numpy_helper.from_array(np.array([32, 40], np.int64), "S")
    half = onnx.numpy_helper.from_array(np.array([0.5], np.float32), "half")
    graph = onnx.helper.make_graph(
        [node("ConstantOfShape", "S", "M", value=half), node("MatMul", "x M", "y")],
        "graph",
        [info("x", T.FLOAT, ["n", 32]), info("S", T.INT64, [2])],
        [info("y", T.FLOAT, ["n", 40])],
        [shape],
    )
    path = tmp_path / "old.onnx"
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 9)], ir_version=3), path
    )
    x = RNG.standard_normal((3, 32)).astype(np.float32)
    expected = np.repeat(x.sum(1, keepdims=True) / 2, 40, axis=1)
    for result in shared.run(str(path), x):
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)
    assert shared.device.counters() == {"onnx_sessions": 2, "onnx_models_not_shared": 0}


def test_the_files_go_with_the_last_session(shared: Shared, network: str) -> None:
    spec, model = kernel_spec(network, "network"), OnnxModel(network)
    mapped = shared.rigs[0].stream.prepare(spec, model)._session.mapped  # type: ignore[attr-defined]
    folder = Path(mapped._path).parent
    assert folder.is_dir()
    del mapped
    shared.device.forget(model)
    gc.collect()
    assert not folder.exists()


def test_a_model_that_cannot_be_loaded_says_so_as_ever(tmp_path: Path) -> None:
    path = tmp_path / "broken.onnx"
    path.write_bytes(b"no model")
    for text in (str(path), str(tmp_path / "missing.onnx")):
        with pytest.raises(LaunchError, match=rf"model {text}"):
            onnx_weights.MappedModel(import_onnxruntime(), OnnxModel(text))


def test_without_room_for_the_files_every_share_has_its_own_weights_and_that_is_told(
    shared: Shared, network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    x = RNG.standard_normal((1, 16, 12, 12)).astype(np.float32)
    results = shared.run(network, x)
    np.testing.assert_allclose(results[0], results[1], rtol=1e-5, atol=1e-5)
    assert shared.device.counters() == {"onnx_sessions": 2, "onnx_models_not_shared": 1}


def test_what_cannot_be_loaded_again_is_loaded_from_the_model(
    shared: Shared, network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = onnx_weights.MappedModel.__init__

    def spoil(self: onnx_weights.MappedModel, runtime: Any, model: OnnxModel) -> None:
        written(self, runtime, model)
        Path(self._path).write_bytes(b"spoilt")

    monkeypatch.setattr(onnx_session.MappedModel, "__init__", spoil)
    x = RNG.standard_normal((1, 16, 12, 12)).astype(np.float32)
    results = shared.run(network, x)
    np.testing.assert_allclose(results[0], results[1], rtol=1e-5, atol=1e-5)
    assert shared.device.counters()["onnx_models_not_shared"] == 1


FULL = """
import resource, signal, sys
from polymux.core.implementation import OnnxModel
from polymux.device.onnx_session import OnnxSessions

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
sessions = OnnxSessions()
sessions.expect((0, 1))
sessions.expect((0,))
for limit_nbytes in (*range(0, 8000, 1000), 12_000, 16_000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_nbytes, resource.RLIM_INFINITY))
    held = sessions.get(OnnxModel(sys.argv[1]), (0,))
    print(held.mapped.problem != "", end=" ")
    del held
"""


def test_a_disk_that_is_full_costs_memory_and_nothing_else(network: str) -> None:
    """Whatever part of the files has room: what is not complete is never mapped."""
    ended = subprocess.run(
        [sys.executable, "-c", FULL, network], capture_output=True, text=True, check=True, timeout=60
    )
    assert ended.stdout.split() == ["True"] * 10
    assert f"polymux: every share has the weights of {network} for itself" in ended.stderr


MEMORY = """
import sys
from polymux.core.implementation import OnnxModel
from polymux.device.onnx_session import OnnxSessions
import onnxruntime

def pss():
    lines = open("/proc/self/smaps_rollup").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) << 10

path, first, second = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
sessions = OnnxSessions()
for cores in ((first, second), (first,), (second,)):
    sessions.expect(cores)
held = [sessions.get(OnnxModel(path), (first, second))]
before = pss()
held += [sessions.get(OnnxModel(path), (first,)), sessions.get(OnnxModel(path), (second,))]
print(pss() - before, len({id(session) for session in held}), held[1].mapped.problem or "shared")
"""


@several
@pytest.mark.parametrize("kind", ["convolutions", "products"])
def test_a_further_share_takes_no_memory_for_weights(kind: str) -> None:
    nodes, weights = [], []
    for i in range(4):
        if kind == "products":
            nodes.append(node("MatMul", f"t{i} W{i}", f"t{i + 1}"))
            weights.append(constant(f"W{i}", 1400, 1400))
        else:
            nodes.append(node("Conv", f"t{i} W{i}", f"t{i + 1}", kernel_shape=[3, 3], pads=[1, 1, 1, 1]))
            weights.append(constant(f"W{i}", 464, 464, 3, 3))
    nodes[-1].output[0] = "y"
    shape = ["n", 1400] if kind == "products" else ["n", 464, 4, 4]
    with tempfile.TemporaryDirectory() as folder:
        path = save(
            Path(folder) / "large.onnx",
            nodes,
            [info("t0", T.FLOAT, shape)],
            [info("y", T.FLOAT, shape)],
            tuple(weights),
        )
        output = subprocess.run(
            [sys.executable, "-c", MEMORY, path, str(CORES[0]), str(CORES[1])],
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout
        more, sessions, how = output.split()
        assert (sessions, how) == ("2", "shared")
        assert int(more) < os.path.getsize(path) // 4
