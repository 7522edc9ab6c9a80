"""The real models from packages."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from polymux.core.errors import ConfigError
from polymux.onnxgraph.cost import nodes_of
from polymux.onnxgraph.file import load_model
from polymux.onnxgraph.inputs import batch_of
from polymux.profiling.samples import SAMPLES, Sample, find_sample, write_repository, write_sample


@pytest.mark.parametrize(
    "name", ["squeezenet", "shufflenet", "read_text", "turn_text", "name_file_type", "hear_speech"]
)
def test_a_sample_runs_on_batches_and_gives_numbers(name: str, tmp_path: Path) -> None:
    path = write_sample(name, tmp_path / "model.onnx")
    model = load_model(path)
    inputs = SAMPLES[name].inputs(model)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for batch in (1, 3):
        results = session.run(None, batch_of(inputs, batch, np.random.default_rng(0)))
        assert results[0].shape[0] == batch
        assert all(np.isfinite(result).all() for result in results)
    assert results[0].std() > 0
    before = path.stat().st_mtime_ns
    assert write_sample(name, path).stat().st_mtime_ns == before


def test_squeezenet_has_the_published_number_of_operations(tmp_path: Path) -> None:
    model = load_model(write_sample("squeezenet", tmp_path / "model.onnx"))
    inputs = SAMPLES["squeezenet"].inputs(model)
    nodes = nodes_of(model, batch_of(inputs, 1, np.random.default_rng(0)))
    assert sum(node.flops for node in nodes) == pytest.approx(
        0.7e9, rel=0.05
    )  # 0.35 G multiply-adds (SqueezeNet 1.1)
    assert sum(node.weight_nbytes for node in nodes) == pytest.approx(4 * 1.24e6, rel=0.02)


def test_a_repository_has_the_models_where_the_front_end_looks(tmp_path: Path) -> None:
    write_repository(tmp_path, ["turn_text", "hear_speech"])
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.onnx")) == [
        "hear_speech/1/model.onnx",
        "turn_text/1/model.onnx",
    ]


def test_unknown_names_and_missing_packages_are_errors() -> None:
    with pytest.raises(ConfigError, match="'resnet'.*squeezenet"):
        find_sample("resnet")
    with pytest.raises(ConfigError, match="pip install --no-deps no-such-package"):
        _ = Sample("x", "no-such-package", "model.onnx", "").file
    with pytest.raises(ConfigError, match="no such file"):
        _ = Sample("x", "onnx", "onnx/none.onnx", "").file
