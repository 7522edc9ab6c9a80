"""`polymux serve --policy` over a real server with nested shares: batches, refusals, deadlines, changes of shares."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import polymux
from polymux.bench.policies.generator import Plan
from polymux.perfmodel.surface import TableSurface
from polymux.profiles import Grid, Point, ProfiledModel, ProfileStore, identify, model_key
from tests.serving import repository
from tests.serving.front_end import FrontEnd, server, serving

SLO = 'parameters {{ key: "slo_ms" value {{ string_value: "{}" }} }}\n'
BATCHED = "max_batch_size: 8\n" + SLO.format(10_000)


def products(size: int = 256, count: int = 8) -> onnx.ModelProto:
    """Make a model of some work: `y` is `x` times a matrix, again and again."""
    matrix = numpy_helper.from_array(np.eye(size, dtype=np.float32), "w")
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", size]) for name in "xy"]
    names = ["x", *(f"t{index}" for index in range(count - 1)), "y"]
    nodes = [helper.make_node("MatMul", [names[index], "w"], [names[index + 1]]) for index in range(count)]
    return repository.graph(nodes, tensors[:1], tensors[1:], [matrix])


def picky() -> onnx.ModelProto:
    """Make a model that fails for a batch with an item of which `index` is out of range: `y` is `table[index]`."""
    table = numpy_helper.from_array(np.arange(10, dtype=np.float32), "table")
    index = helper.make_tensor_value_info("index", TensorProto.INT64, ["batch", 1])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 1])
    return repository.graph([helper.make_node("Gather", ["table", "index"], ["y"])], [index], [y], [table])


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root: Path = tmp_path_factory.mktemp("models")
    repository.add(root, "products", products(), BATCHED)
    repository.add(root, "picky", picky(), BATCHED)
    repository.add(root, "slow", products(16, 1), BATCHED)
    repository.add(root, "underrated", products(256, 160), BATCHED)
    repository.add(root, "id", repository.identity("FP32"))
    return root


@pytest.fixture(scope="module")
def socket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("server") / "socket"
    with server(path, "cpu,shares=nested"):
        yield path


@pytest.fixture(scope="module")
def free_socket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A server on which nobody schedules yet."""
    path = tmp_path_factory.mktemp("free") / "socket"
    with server(path, "cpu,shares=nested"):
        yield path


@pytest.fixture(scope="module")
def store(models: Path, socket: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Profiles as they could have been measured: nothing here depends on how exact they are."""
    path: Path = tmp_path_factory.mktemp("profiles") / "profiles.db"
    with polymux.connect(str(socket), start=False) as client:
        (device,) = client.status()["devices"]
    identity = identify(device)
    units = tuple(sorted({len(stream["units"]) for stream in device["streams"]}))
    with ProfileStore(path, write=True) as profiles:
        profiles.put_device(identity)
        for name, item_ns in (
            ("products", 2_000_000),
            ("picky", 2_000_000),
            ("slow", 1_000_000_000),
            ("underrated", 50_000),
        ):
            key = model_key(models / name / "1" / "model.onnx")
            profiles.put_model(ProfiledModel(key, name))
            profiles.put_grid(key, identity.key, Grid(units, (1, 8)))
            for share in units:
                for batch in (1, 8):
                    took = item_ns * batch
                    point = Point(share, batch, 10, took, took, took, took, 1000, 0.95, 0)
                    profiles.put_point(key, identity.key, point)
        surface = profiles.surface(model_key(models / "products/1/model.onnx"), identity.key)
        assert isinstance(surface, TableSurface)
    return path


def infer(
    front: FrontEnd, model: str, values: Any, name: str = "x", **parameters: Any
) -> tuple[int, Any, str]:
    """Send an inference; return status, answer, and the header Retry-After."""
    array = np.asarray(values)
    datatype = "INT64" if array.dtype == np.int64 else "FP32"
    tensor = {"name": name, "datatype": datatype, "shape": list(array.shape), "data": array.ravel().tolist()}
    body = json.dumps({"inputs": [tensor], "parameters": parameters}).encode()
    request = urllib.request.Request(f"http://{front.url}/v2/models/{model}/infer", data=body)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read()), ""
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read()), error.headers.get("retry-after", "")


def metric(front: FrontEnd, name: str, **labels: str) -> float:
    """Return the sum of a metric over what has these labels."""
    with urllib.request.urlopen(f"http://{front.url}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    found = re.findall(rf"^polymux_serving_{name}\{{(.*)\}} (\S+)$", text, re.MULTILINE)
    return sum(float(value) for given, value in found if all(want in given for want in wanted))


@pytest.fixture(scope="module")
def front(models: Path, socket: Path, store: Path) -> Iterator[FrontEnd]:
    with serving(models, "--policy", "spacetime", "--socket", str(socket), "--store", str(store)) as started:
        started.wait_until_loaded()
        yield started


def test_requests_of_many_connections_share_batches_and_each_gets_its_answer(front: FrontEnd) -> None:
    def ask(value: int) -> tuple[int, Any]:
        row = np.full((1, 256), value, np.float32)
        status, answer, _ = infer(front, "products", row, timeout=30_000_000)
        return status, answer["outputs"][0]["data"] if status == 200 else answer

    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(ask, range(64)))
    assert answers == [(200, [float(value)] * 256) for value in range(64)]
    items = metric(front, "batch_items_sum", model="products/1")
    batches = metric(front, "batch_items_count", model="products/1")
    assert items == 64
    assert batches < items


def test_a_request_of_several_items_stays_together(front: FrontEnd) -> None:
    rows = np.arange(3 * 256, dtype=np.float32).reshape(3, 256)
    status, answer, _ = infer(front, "products", rows)
    assert status == 200
    assert answer["outputs"][0]["shape"] == [3, 256]
    assert answer["outputs"][0]["data"] == rows.ravel().tolist()


def test_a_bad_item_fails_alone_whatever_it_is_batched_with(front: FrontEnd) -> None:
    def ask(value: int) -> tuple[int, Any]:
        status, answer, _ = infer(front, "picky", np.array([[value]], np.int64), "index", timeout=30_000_000)
        return status, answer["outputs"][0]["data"] if status == 200 else answer["error"]

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(ask, [0, 1, 2, 99, 4, 5, 6, 7] * 4))
    for index, (status, answer) in enumerate(answers):
        if index % 8 == 3:
            assert status == 500
            assert "out of" in answer
        else:
            assert (status, answer) == (200, [float(index % 8)])


def test_what_cannot_be_met_is_refused_with_the_time_to_come_back(front: FrontEnd) -> None:
    status, answer, retry = infer(front, "slow", np.zeros((8, 16), np.float32), timeout=2_000_000)
    assert status == 503
    assert "model 'slow/1': refused: " in answer["error"]
    assert int(retry) >= 1


def test_a_model_without_profile_is_served_and_its_share_changes_without_a_lost_answer(
    front: FrontEnd,
) -> None:
    end = time.monotonic() + 3
    answers: list[str] = []

    def ask() -> None:
        while time.monotonic() < end:
            status, answer, _ = infer(front, "id", np.zeros(1000, np.float32), timeout=20_000_000)
            answers.append("" if status == 200 else answer["error"])

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    refused = [answer for answer in answers if answer]
    assert all("refused: " in answer for answer in refused)  # on a machine that stands still for a moment
    assert len(refused) < len(answers) // 2
    changes = metric(front, "share_changes_total", model="id/1")
    if changes:
        assert 0 < metric(front, "longest_gap_seconds", model="id/1") < 10


def test_the_log_and_the_metrics_tell_of_the_models(front: FrontEnd) -> None:
    log = front.log.read_text()
    assert "model products/1: slo 10000 ms" in log
    assert "model id/1: slo 1000 ms" in log
    assert "not profiled" in log
    assert metric(front, "requests_total", outcome="on_time") > 0


@pytest.mark.parametrize("policy", ["unscheduled", "temporal", "gslice", "dstack"])
def test_every_policy_answers_everything_that_it_admits(
    policy: str, models: Path, free_socket: Path, store: Path
) -> None:
    with serving(
        models,
        "--policy",
        policy,
        "--socket",
        str(free_socket),
        "--store",
        str(store),
        "--slo-ms",
        "picky=20000",
    ) as front:
        front.wait_until_loaded()
        with ThreadPoolExecutor(8) as pool:
            rows = np.zeros((1, 256), np.float32)
            products = [pool.submit(infer, front, "products", rows) for _ in range(20)]
            others = [pool.submit(infer, front, "id", np.zeros(5, np.float32)) for _ in range(10)]
            assert [each.result()[0] for each in (*products, *others)] == [200] * 30
        assert "model picky/1: slo 20000 ms" in front.log.read_text()


@pytest.mark.parametrize("model", ["products", "underrated"])
def test_a_burst_of_one_model_leaves_the_others_their_answers(model: str, front: FrontEnd) -> None:
    """Thousands of requests at once, also for a model that takes far longer than its profile says: what cannot be met
    is refused, nothing is forgotten."""
    array = np.zeros((1, 256), np.float32)
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 256], "data": array.ravel().tolist()}
    body = json.dumps({"inputs": [tensor], "parameters": {"timeout": 50_000}}).encode()
    head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nhost: test\r\ncontent-length: {len(body)}\r\n\r\n"
    host, _, port = front.url.rpartition(":")
    count = 3000
    requests = (base64.b64encode(head.encode() + body).decode(),)
    plan = Plan(host, int(port), requests, (0,) * count, times_ns=(1,) * count, drain_s=60)
    words = [sys.executable, "-m", "polymux.bench.policies.generator"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as burst:
        assert burst.stdin is not None
        assert burst.stdout is not None
        burst.stdin.write(plan.to_json())
        burst.stdin.close()
        answers = [
            infer(front, "picky", np.array([[5]], np.int64), "index", timeout=30_000_000)[0]
            for _ in range(10)
        ]
        statuses = json.loads(burst.stdout.read())["status"]
    assert answers == [200] * 10
    assert len(statuses) == count
    assert set(statuses) <= {200, 503}


def test_a_wrong_parameter_in_the_configuration_is_the_reason_in_the_index(
    free_socket: Path, tmp_path: Path
) -> None:
    repository.add(tmp_path, "bad", repository.identity("FP32"), SLO.format("soon"))
    repository.add(tmp_path, "worse", repository.identity("FP32"), SLO.format("-5"))
    repository.add(tmp_path, "good", repository.identity("FP32"), SLO.format("250"))
    with serving(tmp_path, "--policy", "unscheduled", "--socket", str(free_socket)) as front:
        front.wait_until_loaded()
        index = front.index()
        assert "parameter 'slo_ms' in config.pbtxt is 'soon'" in index["bad"]["reason"]
        assert "slo_ms is -5; give milliseconds" in index["worse"]["reason"]
        assert infer(front, "good", np.zeros(3, np.float32))[0] == 200


def test_an_unknown_policy_ends_it_with_the_known_ones(models: Path) -> None:
    with pytest.raises(AssertionError), serving(models, "--policy", "magic"):
        pass


def test_without_a_server_the_runtime_inside_is_divided_for_the_policy(models: Path) -> None:
    with serving(models, "--policy", "dstack") as front:
        front.wait_until_loaded()
        assert infer(front, "id", np.zeros(3, np.float32))[0] == 200


def test_the_models_come_back_with_the_server(models: Path, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with server(path, "cpu,shares=nested"):
        starting = serving(models, "--policy", "unscheduled", "--socket", str(path))
        front = starting.__enter__()
        front.wait_until_loaded()
        assert infer(front, "id", np.zeros(3, np.float32))[0] == 200
    try:
        front.wait_for(lambda: infer(front, "id", np.zeros(3, np.float32))[0] == 503)
        with server(path, "cpu,shares=nested"):
            front.wait_for(lambda: infer(front, "id", np.zeros(3, np.float32))[0] == 200)
    finally:
        starting.__exit__(None, None, None)


def test_a_damaged_profile_store_is_the_reason_in_the_index(
    models: Path, free_socket: Path, tmp_path: Path
) -> None:
    damaged = tmp_path / "profiles.db"
    damaged.write_bytes(b"no database" * 100)
    with serving(
        models, "--policy", "dstack", "--socket", str(free_socket), "--store", str(damaged)
    ) as front:
        front.wait_until_loaded()
        assert "profile store" in front.index()["products"]["reason"]
