"""A profile is of the library that ran the model: on a device that prefers OpenVINO it is OpenVINO's."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

import onnx
import pytest

from polymux.profiles import ProfileStore
from tests.segment.server_process import ServerProcess
from tests.serving.front_end import POLYMUX
from tests.serving.test_partition import layers

pytestmark = pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason="needs openvino")


@pytest.mark.timeout(300)
def test_a_profile_on_a_device_that_prefers_openvino_is_measured_with_it_and_has_its_key(
    tmp_path: Path,
) -> None:
    path, store = tmp_path / "layers.onnx", tmp_path / "profiles.db"
    onnx.save(layers(2), path)
    with ServerProcess(tmp_path, "--device", "cpu,models=openvino") as process:
        words = ["--socket", str(process.socket), "--store", str(store), "--batches", "1", "--repeats", "10"]
        words += ["--place-seconds", "0.2"]
        done = subprocess.run(
            [POLYMUX, "profile", str(path), *words], capture_output=True, text=True, timeout=280, check=False
        )
        assert done.returncode == 0, done.stderr
        (device,) = process.status()["devices"]
        assert device["counters"]["onnx_sessions"] == 0, "onnxruntime has not run it"
    with ProfileStore(store) as profiles:
        (identity,) = profiles.devices().values()
    assert set(identity.versions) == {"openvino"}
