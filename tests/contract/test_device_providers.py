"""Execution providers of onnxruntime: each one that it offers is a version that devices may run.

Here onnxruntime only says that it has them: what they would compute, the processor does.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polymux.core.device_spec import Share
from polymux.core.errors import ConfigError, DeviceUnavailable, InvalidRequest
from polymux.core.implementation import OnnxModel, ProviderModel
from polymux.core.task_view import Access
from polymux.device import onnx_providers
from polymux.device.model_libraries import model_libraries
from polymux.device.onnx_model import kernel_spec
from polymux.device.protocol import LaunchError
from polymux.device.registry import discover
from tests.contract.device_rig import Rig
from tests.contract.test_device_onnx import info, node, save

onnx = pytest.importorskip("onnx")
real = pytest.importorskip("onnxruntime")
T = onnx.TensorProto
GPU = ("TensorrtExecutionProvider", "CUDAExecutionProvider")


class FakeSession:
    """A session that says which providers it was given, and computes without them."""

    def __init__(self, session: Any, providers: list[str]) -> None:
        self._session = session
        self._providers = providers

    def get_providers(self) -> list[str]:
        return self._providers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)


class FakeRuntime:
    """onnxruntime as if it had been built with other providers; those in `broken` cannot be set up.

    Each one has `accelerators` accelerators; onnxruntime does without a provider that lacks the one it is to use.
    """

    def __init__(self, *offered: str, broken: tuple[str, ...] = (), accelerators: int = 2) -> None:
        self.accelerators = accelerators
        self.offered = [*offered, "CPUExecutionProvider"]
        self.broken = broken
        self.given: list[list[Any]] = []

    def get_available_providers(self) -> list[str]:
        return self.offered

    def InferenceSession(  # noqa: N802
        self, path: Any, options: Any, providers: list[Any], **_: Any
    ) -> FakeSession:
        self.given.append(providers)
        names = [given if isinstance(given, str) else given[0] for given in providers]
        session = real.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        lacking = {
            given[0]
            for given in providers
            if not isinstance(given, str) and int(given[1].get("device_id", 0)) >= self.accelerators
        }
        return FakeSession(session, [name for name in names if name not in lacking.union(self.broken)])

    def __getattr__(self, name: str) -> Any:
        return getattr(real, name)


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Give a function that makes onnxruntime one that offers some providers."""

    def make(*offered: str, broken: tuple[str, ...] = (), accelerators: int = 2) -> FakeRuntime:
        runtime = FakeRuntime(*offered, broken=broken, accelerators=accelerators)
        monkeypatch.setitem(sys.modules, "onnxruntime", runtime)
        monkeypatch.setattr(onnx_providers, "_brings_libraries", lambda: True)
        return runtime

    return make


@pytest.fixture
def model(tmp_path: Path) -> str:
    return save(
        tmp_path / "double.onnx",
        [node("Add", "x x", "y")],
        [info("x", T.FLOAT, ["n", 3])],
        [info("y", T.FLOAT, ["n", 3])],
    )


def doubled(rig: Rig, model: str, implementation: Any) -> Any:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    y = rig.put(np.zeros((2, 3), np.float32), Access.WRITE)
    rig.run(kernel_spec(model, "double"), implementation, [rig.put(x), y])
    return (rig.get(y) == 2 * x).all()


def test_what_is_offered_is_what_onnxruntime_says(offer: Any) -> None:
    offer("AzureExecutionProvider", "DnnlExecutionProvider", *GPU)
    assert [provider.name for provider in onnx_providers.offered()] == ["tensorrt", "cuda", "dnnl"]
    names = [library.name for library in model_libraries() if library.version]
    assert names[:4] == ["onnxruntime", "onnxruntime:tensorrt", "onnxruntime:cuda", "onnxruntime:dnnl"]


def test_an_accelerator_behind_a_provider_is_a_device_that_runs_models(offer: Any, model: str) -> None:
    runtime = offer(*GPU)
    for request, first in (
        ("onnxruntime", ("TensorrtExecutionProvider", {"device_id": "0"})),
        ("onnxruntime:cuda:1", ("CUDAExecutionProvider", {"device_id": "1"})),
    ):
        (device,), _ = discover([request])
        assert device.spec.api == "onnxruntime"
        (api,) = device.spec.apis
        provider = ProviderModel.provider_of(api)
        assert provider is not None
        rig = Rig(device, Share())
        assert doubled(rig, model, ProviderModel(model, provider))
        assert runtime.given[-1][0] == first
        assert runtime.given[-1][-1] == "CPUExecutionProvider"
        assert device.counters() == {"onnx_sessions": 1}
        device.close()
    behind = [given[1] for given in runtime.given if given[0][0] == "TensorrtExecutionProvider"]
    assert behind == [("CUDAExecutionProvider", {"device_id": "0"})] * 2, (
        "behind TensorRT comes CUDA, at opening too"
    )


def test_it_runs_nothing_else_and_has_no_parts_and_no_memory(offer: Any, model: str) -> None:
    offer(*GPU)
    (device,), _ = discover(["onnxruntime:cuda"])
    stream = device.open_stream(Share())
    with pytest.raises(LaunchError, match=r"for onnx; onnxruntime:0 runs those for onnx:cuda"):
        stream.prepare(kernel_spec(model, "double"), OnnxModel(model))
    with pytest.raises(InvalidRequest, match="cannot be divided"):
        device.open_stream(Share((1,)))
    with pytest.raises(InvalidRequest, match="host memory"):
        device.allocate(8)
    device.close()


def test_a_cpu_device_prefers_the_provider_that_it_is_told_and_has_the_others_behind_it(
    offer: Any, model: str
) -> None:
    runtime = offer("DnnlExecutionProvider", *GPU)
    (device,), _ = discover(["cpu,models=onnxruntime:dnnl"])
    assert device.spec.apis[:3] == ("cpu", "onnx:dnnl", "onnx")
    assert "onnx:cuda" not in device.spec.apis
    rig = Rig(device, Share())
    assert doubled(rig, model, ProviderModel(model, "dnnl"))
    assert runtime.given[-1] == [("DnnlExecutionProvider", {}), "CPUExecutionProvider"]
    assert doubled(rig, model, OnnxModel(model))
    assert runtime.given[-1] == ["CPUExecutionProvider"]
    device.close()
    (device,), _ = discover(["cpu"])
    assert device.spec.apis[1] == "onnx"
    assert "onnx:dnnl" in device.spec.apis
    device.close()


def test_a_provider_that_is_not_offered_or_unknown_is_refused_with_what_there_is(offer: Any) -> None:
    offer("DnnlExecutionProvider")
    with pytest.raises(DeviceUnavailable, match="no CUDAExecutionProvider; install onnxruntime-gpu"):
        discover(["onnxruntime:cuda"])
    with pytest.raises(DeviceUnavailable, match="offers DnnlExecutionProvider, CPUExecutionProvider"):
        discover(["onnxruntime"])
    with pytest.raises(ConfigError, match="no XnnpackExecutionProvider; install"):
        discover(["cpu,models=onnxruntime:xnnpack"])
    with pytest.raises(ConfigError, match="for the processor .*known are openvino, dnnl"):
        discover(["cpu,models=onnxruntime:cuda"])
    with pytest.raises(ConfigError, match="for an accelerator .*known are tensorrt, cuda"):
        discover(["onnxruntime:dnnl"])
    with pytest.raises(ConfigError, match="number of an accelerator"):
        discover(["onnxruntime:cuda:first"])
    with pytest.raises(ConfigError, match="number of an accelerator"):
        discover(["onnxruntime:cuda:"])


def test_a_provider_that_cannot_be_set_up_is_no_device_and_no_silent_fallback(offer: Any) -> None:
    offer(*GPU, broken=GPU)
    with pytest.raises(
        DeviceUnavailable, match="accelerator 0 of CUDAExecutionProvider .* is the driver that it needs"
    ):
        discover(["onnxruntime:cuda"])
    with pytest.raises(DeviceUnavailable, match=r"of TensorrtExecutionProvider .*of CUDAExecutionProvider"):
        discover(["onnxruntime"])


def test_an_accelerator_of_a_number_that_there_is_not_is_no_device(offer: Any) -> None:
    offer(*GPU, accelerators=1)
    with pytest.raises(DeviceUnavailable, match="accelerator 7 of CUDAExecutionProvider"):
        discover(["onnxruntime:cuda:7"])


def test_the_first_provider_is_the_first_one_that_can_be_set_up(offer: Any) -> None:
    offer(*GPU, broken=GPU[:1])
    (device,), _ = discover(["onnxruntime"])
    assert device.spec.name == "accelerator 0 of CUDAExecutionProvider"
    device.close()


def test_a_provider_that_fails_later_is_an_error_of_the_task(offer: Any, model: str) -> None:
    runtime = offer(*GPU)
    (device,), _ = discover(["onnxruntime:cuda"])
    runtime.broken = GPU
    with pytest.raises(LaunchError, match="could not set CUDAExecutionProvider up; is the driver"):
        doubled(Rig(device, Share()), model, ProviderModel(model, "cuda"))
    with pytest.raises(LaunchError, match="no execution provider 'abacus'"):
        cpu = discover(["cpu"])[0][0]
        doubled(Rig(cpu, Share()), model, ProviderModel(model, "abacus"))
    device.close()
