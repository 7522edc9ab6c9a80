"""Which versions of a model are registered: those that some device would rather run."""

from __future__ import annotations

import base64
import pickle
from pathlib import Path
from typing import Any, cast

import pytest

from polymux.client import Client
from polymux.client.model_versions import (
    register_versions,
    runs_models,
    wanted_versions,
    widest_share,
)
from polymux.client.registration import registration_fields
from polymux.core.implementation import Implementation, OnnxModel, OpenVinoModel, ProviderModel
from polymux.core.kernel_spec import KernelSpec

MODEL, PLAIN = OnnxModel("/m/model.onnx"), Path("/m/plain.onnx")


class FakeClient:
    """A server with devices that run some APIs; takes note of what is registered."""

    def __init__(self, *devices: list[str]) -> None:
        self.devices: list[dict[str, Any]] = [{"apis": apis} for apis in devices]
        self.registered: list[Implementation] = []

    def status(self) -> dict[str, Any]:
        return {"devices": self.devices}

    def register(
        self, spec: KernelSpec | None, model: Implementation, *, name: str, isolate: bool
    ) -> KernelSpec:
        assert not isolate
        assert (spec is None) == (not self.registered), "the first one says what it takes"
        self.registered.append(model)
        return KernelSpec(name)


def register(*devices: list[str], plain: Path | None = PLAIN) -> list[Implementation]:
    client = FakeClient(*devices)
    assert register_versions(cast("Client", client), "m/1", MODEL, plain).name == "m/1"
    return client.registered


@pytest.mark.parametrize(
    ("devices", "wanted"),
    [
        ([["cpu", "onnx"], ["opencl"]], ()),
        ([["cpu", "onnx", "openvino", "onnx:dnnl"]], ()),
        ([["cpu", "onnx"], ["cpu", "openvino", "onnx"]], ("openvino",)),
        ([["cpu", "onnx:dnnl", "onnx", "openvino"], ["onnx:cuda"]], ("onnx:dnnl", "onnx:cuda")),
        ([["onnx:cuda"], ["onnx:cuda"]], ("onnx:cuda",)),
    ],
)
def test_what_a_device_runs_before_or_without_onnxruntime_on_the_processor_is_wanted(
    devices: list[list[str]], wanted: tuple[str, ...]
) -> None:
    assert wanted_versions(cast("Client", FakeClient(*devices))) == wanted


def test_a_model_gets_the_versions_that_are_wanted_from_its_plain_file() -> None:
    assert register(["cpu", "onnx"]) == [MODEL]
    assert register(["cpu", "openvino", "onnx"], ["onnx:cuda"]) == [
        MODEL,
        OpenVinoModel(str(PLAIN)),
        ProviderModel(str(PLAIN), "cuda"),
    ]
    assert register(["cpu", "openvino", "onnx"], plain=None) == [MODEL]


def test_devices_that_run_models_are_told_by_their_apis() -> None:
    for apis in (["cpu", "onnx"], ["openvino"], ["onnx:cuda"]):
        assert runs_models(apis)
    for apis in (["cpu"], ["opencl"], []):
        assert not runs_models(apis)


def test_the_widest_share_is_that_of_a_device_that_runs_models() -> None:
    client = FakeClient(["cpu", "onnx"], ["opencl"], ["cpu", "openvino", "onnx"])
    streams: list[Any] = [[[0], [0, 1, 2]], [None], [None, [1]]]
    for device, units, blocks in zip(client.devices, (4, 64, 2), streams, strict=True):
        device |= {"units": units, "streams": [{"units": block} for block in blocks]}
    assert widest_share(cast("Client", client)) == 3
    assert widest_share(cast("Client", FakeClient(["opencl"]))) == 0


def test_a_model_for_a_provider_travels_with_its_whole_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    fields = registration_fields("m", KernelSpec("m"), ProviderModel("model.onnx", "cuda"), isolate=False)
    assert fields["api"] == "onnx:cuda"
    arrived = pickle.loads(base64.b64decode(fields["implementation"]))
    assert arrived == ProviderModel(str(tmp_path / "model.onnx"), "cuda")
