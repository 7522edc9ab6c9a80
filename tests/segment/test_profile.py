"""`polymux profile` on real servers: measures, resumes after being killed, says what it cannot measure."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from polymux.profiles import ProfileStore, model_key
from polymux.profiling.private_server import PrivateServer

QUICK = ("--batches", "1,3", "--place-seconds", "0.2", "--repeats", "20", "--device", "cpu:0,memory=host")


def polymux(
    store: Path, *words: str | Path, code: int = 0, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ, POLYMUX_PROFILES=str(store))
    done = subprocess.run(
        [sys.executable, "-m", "polymux.cli", "profile", *map(str, words)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


def model(
    path: Path,
    nodes: Sequence[Any],
    shape: Sequence[int | str],
    constants: Sequence[Any] = (),
    out: Any = None,
) -> Path:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, out)
    graph = helper.make_graph(nodes, "g", [x], [y], constants)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def free(path: Path) -> Path:
    weights = numpy_helper.from_array(np.ones((64, 64), np.float32), "w")
    return model(path, [helper.make_node("MatMul", ["x", "w"], ["y"])], ("n", 64), [weights])


def fixed(path: Path) -> Path:
    target = numpy_helper.from_array(np.array([1, 12], np.int64), "t")
    return model(path, [helper.make_node("Reshape", ["x", "t"], ["y"])], (1, 3, 4), [target], (1, 12))


def unfreeable(path: Path) -> Path:
    mean = helper.make_node("ReduceMean", ["x"], ["m"], axes=[0])
    return model(path, [mean, helper.make_node("Sub", ["x", "m"], ["y"])], (1, 4))


def at_most_two(path: Path) -> Path:
    """A model that fails with a batch of more than two: it looks its batch up in a table of three."""
    table = numpy_helper.from_array(np.ones(3, np.float32), "table")
    nodes = [
        helper.make_node("Shape", ["x"], ["s"], start=0, end=1),
        helper.make_node("Gather", ["table", "s"], ["g"]),
        helper.make_node("Add", ["x", "g"], ["y"]),
    ]
    return model(path, nodes, ("n", 4), [table])


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "profiles.db"


def test_a_model_is_measured_shown_and_not_measured_again(tmp_path: Path, store: Path) -> None:
    path = free(tmp_path / "net.onnx")
    first = polymux(store, path, *QUICK)
    assert "2 places measured on cpu:0" in first.stderr
    assert "Largest efficacy" in first.stdout
    again = polymux(store, path, *QUICK)
    assert "0 places measured" in again.stderr
    assert "2 were in the store" in again.stderr
    more = polymux(store, path, *QUICK, "--batches", "1,3,5")
    assert "1 places measured" in more.stderr
    fewer = polymux(store, path, *QUICK, "--batches", "3", "--again")
    assert "1 places measured" in fewer.stderr
    assert "2 were in the store" in fewer.stderr
    (shown,) = json.loads(polymux(store, "show", path, "--json", "--slo-ms", "1000", "--rate", "5").stdout)
    assert shown["finished"]
    assert [(point["units"], point["batch"]) for point in shown["points"]] == [(1, 1), (1, 3), (1, 5)]
    assert all(point["min_ns"] <= point["median_ns"] <= point["p95_ns"] for point in shown["points"])
    assert shown["optimum"]["units"] == 1
    assert {bound["by"] for bound in shown["bounds"]} <= {"memory", "compute"}
    polymux(store, "show", "net", "--picture", tmp_path / "net.png")
    assert (tmp_path / "net.png").stat().st_size > 10_000
    assert "net" in polymux(store, "show").stdout
    assert "removed net" in polymux(store, "forget", "net").stdout
    assert "none" in polymux(store, "show").stdout


def test_fixed_batches_are_freed_where_the_graph_allows_it_and_else_said(tmp_path: Path, store: Path) -> None:
    models = tmp_path / "models"
    fixed(models / "free.onnx")
    unfreeable(models / "mean.onnx")
    content = {path: path.read_bytes() for path in models.iterdir()}
    done = polymux(store, models, *QUICK, "--save-batched", tmp_path / "served")
    assert "mean: its batch stays 1: output 'y'" in done.stderr
    assert "batch fixed at 1 in the file, made free" in done.stdout
    with ProfileStore(store) as opened:
        found = {its.name: its for its in opened.models()}
        assert (found["free"].batching, found["mean"].batching) == ("rewritten", "fixed")
        (device,) = opened.devices()
        surface = opened.surface(model_key(models / "free.onnx"), device)
        assert surface is not None
        assert surface.max_batch == 3
        (served,) = (tmp_path / "served").rglob("*.onnx")
        assert served == tmp_path / "served" / "free" / "1" / "model.onnx"
        assert opened.surface(model_key(served), device) == surface
        assert opened.find_model(model_key(served)).batching == "dynamic"
        alone = opened.surface(model_key(models / "mean.onnx"), device)
        assert alone is not None
        assert alone.max_batch == 1
    assert {path: path.read_bytes() for path in models.iterdir()} == content
    again = polymux(store, tmp_path / "served", *QUICK, "--name", "served")
    assert "0 places measured" in again.stderr
    served.write_bytes(b"something else")
    said = polymux(store, models / "free.onnx", *QUICK, "--save-batched", tmp_path / "served", code=1).stderr
    assert "is there already" in said


def test_batches_that_fail_are_left_out_and_said(tmp_path: Path, store: Path) -> None:
    path = at_most_two(tmp_path / "two.onnx")
    done = polymux(store, path, *QUICK, "--batches", "1,2,3,4")
    assert "left out: batch 3 and more" in done.stderr
    with ProfileStore(store) as opened:
        (device,) = opened.devices()
        surface = opened.surface(model_key(path), device)
    assert surface is not None
    assert surface.max_batch == 2


def test_outputs_whose_size_depends_on_values_get_room(tmp_path: Path, store: Path) -> None:
    path = model(tmp_path / "odd name [ü].onnx", [helper.make_node("NonZero", ["x"], ["z"]),
                 helper.make_node("Cast", ["z"], ["y"], to=TensorProto.FLOAT)], ("n", 50))  # fmt: skip
    done = polymux(store, path, *QUICK, "--batches", "1,2,9", "--values", "x=-1..0.2")
    assert "3 places measured" in done.stderr
    assert "left out" not in done.stderr


def test_a_repository_is_measured_and_what_is_broken_in_it_is_said(tmp_path: Path, store: Path) -> None:
    root = tmp_path / "repository"
    free(root / "good" / "1" / "model.onnx")
    free(root / "good" / "2" / "model.onnx")
    (root / "bad" / "1").mkdir(parents=True)
    (root / "bad" / "1" / "model.onnx").write_bytes(b"no model")
    (root / "empty").mkdir()
    sizes = model(root / "sizes" / "1" / "model.onnx", [helper.make_node("Relu", ["x"], ["y"])], ("n", "m"))
    (root / "sizes" / "config.pbtxt").write_text(
        'max_batch_size: 8\ninput { name: "x" data_type: TYPE_FP32 dims: 7 }'
    )
    done = polymux(store, root, *QUICK, code=1)
    assert "bad: " in done.stderr
    assert "empty: no version directory" in done.stderr
    with ProfileStore(store) as opened:
        assert [its.name for its in opened.models()] == ["good", "sizes"]
        assert opened.models()[0].path == str((root / "good" / "2" / "model.onnx").resolve())
        assert opened.find_model(model_key(sizes)).inputs == "x=Nx7"


def test_a_profile_that_was_killed_goes_on_where_it_stopped(tmp_path: Path, store: Path) -> None:
    path = free(tmp_path / "net.onnx")
    batches = ",".join(map(str, range(1, 41)))
    slow = (
        "--batches",
        batches,
        "--place-seconds",
        "0.5",
        "--precision",
        "0.0001",
        "--device",
        "cpu:0,memory=host",
    )
    words = [sys.executable, "-m", "polymux.cli", "profile", str(path), "--store", str(store), *slow]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    key, done = model_key(path), 0
    deadline = time.monotonic() + 60
    while done < 3 and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.05)
        if store.exists():
            with sqlite3.connect(f"{store.as_uri()}?mode=ro", uri=True) as reader:
                tables = reader.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'point'").fetchone()[
                    0
                ]
                done = reader.execute("SELECT count(*) FROM point").fetchone()[0] if tables else 0
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopped; what was measured is in" in said
    with ProfileStore(store) as opened:
        (device,) = opened.devices()
        kept = len(opened.points(key, device))
        assert 3 <= kept < 40
        assert opened.surface(key, device) is None
    resumed = polymux(store, path, *QUICK, "--batches", batches)
    assert f"{40 - kept} places measured" in resumed.stderr
    assert f"{kept} were in the store" in resumed.stderr


def test_a_running_server_can_be_measured_and_names_its_shares(tmp_path: Path, store: Path) -> None:
    path = free(tmp_path / "net.onnx")
    with PrivateServer(["cpu,shares=nested"]) as server:
        done = polymux(store, path, *QUICK[:-2], "--units", "1", "--socket", server.socket)
        assert "2 places measured on cpu:0" in done.stderr
        wrong = polymux(store, path, *QUICK[:-2], "--units", "77", "--socket", server.socket, code=1)
        assert re.search(r"units 77: cpu:0 offers shares of 1,? ?.*units", wrong.stderr)
    with PrivateServer(["cpu,streams=1"]) as server:  # as many units, but only all of them together
        code = int(len(os.sched_getaffinity(0)) > 1)
        fewer = polymux(store, path, *QUICK[:-2], "--batches", "7", "--socket", server.socket, code=code)
        assert ("units 1: cpu:0 offers shares of" in fewer.stderr) == bool(code)
    with ProfileStore(store) as opened:
        ((model_id, device_id),) = opened.profiles()
        assert not opened.missing(model_id, device_id)
        (device,) = opened.devices().values()
    assert device.units == len(os.sched_getaffinity(0))


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_profile_that_is_ended_leaves_no_server(how: signal.Signals, tmp_path: Path, store: Path) -> None:
    path = free(tmp_path / "net.onnx")
    words = [
        sys.executable,
        "-m",
        "polymux.cli",
        "profile",
        str(path),
        "--store",
        str(store),
        "--place-seconds",
        "60",
    ]
    process = subprocess.Popen(
        [*words, "--precision", "0.00001"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    servers: list[int] = []
    deadline = time.monotonic() + 60
    while not (servers and store.exists()) and time.monotonic() < deadline:
        time.sleep(0.05)
        servers = [
            int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        ]
    time.sleep(0.3)
    process.send_signal(how)
    assert process.wait(30) == (128 + how if how is signal.SIGTERM else -how)
    assert servers
    while any(_runs(pid) for pid in servers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(_runs(pid) for pid in servers)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["none.onnx"], "none.onnx: model = 'No such file or directory'"),
        (["bad.onnx"], "bad.onnx: model = 'is no ONNX model'"),
        (["folder"], "give a model, a folder of .onnx files, or a model repository"),
        (["open.onnx"], "--shape x=Nx3x224x224"),
        (["open.onnx", "--shape", "z=Nx3x4x4"], "the model has no such input; it has x"),
        (["open.onnx", "--shape", "x=Nx4x8x8"], "extent 1 cannot be 4 there; it is 3"),
        (["strings.onnx"], "type of input x = 'string': only models whose inputs are tensors of numbers"),
        (["net.onnx", "folder2", "--shape", "x=Nx64"], "say which one has the input"),
        (["net.onnx", "--confidence", "0.5"], "confidence 0.5: give one of"),
        (["net.onnx", "--batches", "0,1"], "batches (0, 1)"),
        (["net.onnx", "--device", "cpu:999"], "999"),
        (["net.onnx", "--socket", "/nowhere/socket"], "no Polymux server at /nowhere/socket"),
        (["sample:nothing"], "there is none of that name; there are squeezenet"),
        (["show", "net"], "does not exist"),
        (["show", "--slo-ms", "5"], "give --slo-ms and --rate together"),
    ],
)
def test_what_cannot_be_measured_is_an_error_with_a_remedy(
    words: list[str], said: str, tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.onnx").write_bytes(b"no model at all")
    (tmp_path / "folder").mkdir()
    free(tmp_path / "net.onnx")
    free(tmp_path / "folder2" / "net.onnx")
    model(tmp_path / "open.onnx", [helper.make_node("Relu", ["x"], ["y"])], ("n", 3, "h", "w"))
    strings = [helper.make_tensor_value_info(name, TensorProto.STRING, ["n"]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", strings[:1], strings[1:])
    onnx.save(helper.make_model(graph, ir_version=8), tmp_path / "strings.onnx")
    options = [] if words[0] == "show" else ["--place-seconds", "0.1"]
    assert said in polymux(store, *words, *options, code=1).stderr


def test_a_store_that_is_damaged_is_an_error_before_anything_is_measured(tmp_path: Path, store: Path) -> None:
    path = free(tmp_path / "net.onnx")
    store.write_bytes(b"garbage" * 1000)
    for words in ([path, *QUICK], ["show"], ["show", "net"], ["forget", "net"]):
        said = polymux(store, *words, code=1).stderr
        assert str(store) in said
        assert "is damaged" in said
