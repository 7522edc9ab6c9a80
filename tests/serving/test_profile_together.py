"""``polymux profile together`` on a real server with a real model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from polymux.profiles import ProfileStore


def _model(path: Path, width: int) -> Path:
    weights = numpy_helper.from_array(np.full((width, width), 0.01, np.float32), "w")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ("N", width)) for name in "xy")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [weights])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def _run(store: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "polymux.cli", "profile", "together", *words, "--store", str(store)]
    return subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)


def test_a_model_is_measured_beside_itself_once_and_its_interference_is_in_the_store(tmp_path: Path) -> None:
    store, model = tmp_path / "profiles.db", str(_model(tmp_path / "square.onnx", 256))
    first = _run(store, model, "--json")
    assert first.returncode == 0, first.stderr
    assert "1 pairs measured on cpu:0" in first.stderr
    (found,) = json.loads(first.stdout)
    (pair,) = found["pairs"]
    assert (pair["model"], pair["neighbour"], pair["batch"]) == ("square", "square", 4)
    assert pair["slowdown"] == pair["beside_ns"] / pair["alone_ns"] > 0
    with ProfileStore(store) as opened:
        fitted = opened.interference(found["device"]["key"])
    assert fitted.slowdown("square", [("square", 0.1)]) >= 1
    second = _run(store, model)
    assert "0 pairs measured" in second.stderr
    assert "1 were in the store" in second.stderr
    assert "beside square" in second.stdout


def test_without_a_store_and_with_a_bad_batch_the_error_says_what_to_do(tmp_path: Path) -> None:
    absent = _run(tmp_path / "none.db")
    assert absent.returncode != 0
    assert "profile a model first" in absent.stderr
    bad = _run(tmp_path / "none.db", "x.onnx", "--batch", "0")
    assert bad.returncode != 0
    assert "--batch" in bad.stderr
    assert "give 1 to" in bad.stderr
