"""Models through OpenVINO: the results of onnxruntime, and the same errors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from polymux.core.device_spec import Share
from polymux.core.errors import ConfigError
from polymux.core.implementation import OnnxModel, OpenVinoModel
from polymux.core.kernel_spec import BufferParam, KernelSpec
from polymux.core.task_view import Access
from polymux.device.cores import allowed_cores
from polymux.device.onnx_model import kernel_spec
from polymux.device.protocol import LaunchError
from polymux.device.registry import discover
from tests.contract.device_rig import Rig
from tests.contract.test_device_onnx import info, node, save
from tests.contract.test_onnx_weights import constant

onnx = pytest.importorskip("onnx")
pytest.importorskip("openvino")
T = onnx.TensorProto
RNG = np.random.default_rng(4)
CORE = allowed_cores()[0]


@pytest.fixture(params=["cpu", f"cpu:{CORE}"])
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    (device, *_), _ = discover([f"{request.param},models=openvino"])
    yield Rig(device, Share())
    device.close()


@pytest.fixture
def network(tmp_path: Path) -> str:
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


def test_both_versions_of_a_model_give_the_same_within_rounding_for_any_batch(rig: Rig, network: str) -> None:
    spec = kernel_spec(network, "network")
    for batch in (1, 3, 2):
        x = rig.put(RNG.standard_normal((batch, 16, 12, 12)).astype(np.float32))
        results = []
        for model in (OnnxModel(network), OpenVinoModel(network)):
            y = rig.put(np.zeros((batch, 40), np.float32), Access.WRITE)
            assert rig.run(spec, model, [x, y]) is None
            results.append(rig.get(y))
        np.testing.assert_allclose(results[0], results[1], rtol=1e-4, atol=1e-4)


def test_an_output_that_does_not_fit_says_what_it_needs(rig: Rig, network: str) -> None:
    x = rig.put(np.zeros((4, 16, 12, 12), np.float32))
    y = rig.put(np.zeros((2, 40), np.float32), Access.WRITE)
    with pytest.raises(LaunchError, match="needs 640 bytes"):
        rig.run(kernel_spec(network, "network"), OpenVinoModel(network), [x, y])


def test_what_is_no_model_or_another_one_is_an_error_with_its_name(
    rig: Rig, network: str, tmp_path: Path
) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    spec = kernel_spec(network, "network")
    with pytest.raises(LaunchError, match=r"bad\.onnx cannot be loaded by OpenVINO"):
        rig.stream.prepare(spec, OpenVinoModel(str(tmp_path / "bad.onnx")))
    with pytest.raises(LaunchError, match=r"none\.onnx does not exist"):
        rig.stream.prepare(spec, OpenVinoModel(str(tmp_path / "none.onnx")))
    with pytest.raises(LaunchError, match=r"inputs \['x'\] and outputs \['y'\], its spec other ones"):
        rig.stream.prepare(KernelSpec("k", (BufferParam("a"),)), OpenVinoModel(network))


def test_a_device_prefers_the_library_that_it_was_told_to() -> None:
    for text, expected in (
        ("", ("cpu", "onnx", "openvino")),
        (",models=openvino", ("cpu", "openvino", "onnx")),
    ):
        (device, *_), _ = discover([f"cpu{text}"])
        assert device.spec.apis == expected
        device.close()
    with pytest.raises(
        ConfigError, match="models=tensorflow.*models=onnxruntime:PROVIDER or models=openvino"
    ):
        discover(["cpu,models=tensorflow"])
