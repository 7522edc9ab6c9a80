"""`polymux serve` in a process of its own, used through `tritonclient`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from tritonclient.utils import InferenceServerException

from tests.serving import repository
from tests.serving.front_end import FrontEnd, end, serving

ADD_SUB_CONFIG = """
name: "add_sub"
backend: "onnxruntime"
max_batch_size: 8
input [
  { name: "INPUT0" data_type: TYPE_INT32 dims: [ 16 ] },
  { name: "INPUT1" data_type: TYPE_INT32 dims: [ 16 ] }
]
output [
  { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 16 ] },
  { name: "OUTPUT1" data_type: TYPE_INT32 dims: [ 16 ] }
]
instance_group [ { kind: KIND_CPU } ]
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root: Path = tmp_path_factory.mktemp("models")
    repository.add(root, "add_sub", repository.add_sub(), ADD_SUB_CONFIG)
    repository.add(root, "add_sub_auto", repository.add_sub())
    for datatype in repository.DATATYPES:
        repository.add(root, f"id_{datatype}", repository.identity(datatype))
    repository.add(root, "id_BF16", repository.identity("BF16"))
    repository.add(root, "id_scalar", repository.identity("INT64", ()))
    repository.add(root, "id_rank3", repository.identity("FP32", ("a", "b", "c")))
    repository.add(root, "repeat", repository.repeat())
    repository.add(root, "strict_add", repository.strict_add())
    repository.add(root, "no_model", b"this is no model")
    repository.add(root, "bad_config", repository.add_sub(), "max_batch_sise: 8")
    repository.add(root, "contradiction", repository.add_sub(), 'input { name: "x" }')
    (root / "no_version").mkdir()
    (root / "no_file" / "3").mkdir(parents=True)
    return root


@pytest.fixture(scope="module")
def front(models: Path) -> Iterator[FrontEnd]:
    with serving(models) as started:
        started.wait_until_loaded()
        yield started


@pytest.fixture(scope="module")
def client(front: FrontEnd) -> Iterator[Any]:
    with triton.InferenceServerClient(front.url, concurrency=8, network_timeout=60) as made:
        yield made


def tensor(name: str, value: np.ndarray[Any, Any], datatype: str, binary: bool) -> Any:
    made = triton.InferInput(name, list(value.shape), datatype)
    made.set_data_from_numpy(value, binary_data=binary)
    return made


def infer(client: Any, model: str, binary: bool = True, /, **inputs: tuple[str, np.ndarray[Any, Any]]) -> Any:
    tensors = [tensor(name, value, datatype, binary) for name, (datatype, value) in inputs.items()]
    return client.infer(model, tensors)


def refused(call: Any, *arguments: Any, **options: Any) -> tuple[str, str]:
    with pytest.raises(InferenceServerException) as caught:
        call(*arguments, **options)
    return caught.value.status(), caught.value.message()


def test_the_server_and_its_models_describe_themselves(client: Any) -> None:
    assert client.is_server_live()
    assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
    described = client.get_model_metadata("add_sub")
    assert described["platform"] == "onnxruntime_onnx"
    assert described["inputs"][0] == {"name": "INPUT0", "datatype": "INT32", "shape": [-1, 16]}
    config = client.get_model_config("add_sub")
    assert config["max_batch_size"] == 8
    assert config["input"][1]["dims"] == [16]
    assert client.get_model_config("add_sub_auto")["input"][0]["dims"] == [-1, 16]
    assert client.get_model_metadata("id_scalar")["inputs"][0]["shape"] == []


def test_models_that_cannot_be_served_are_listed_with_the_reason_and_the_others_work(client: Any) -> None:
    index = {entry["name"]: entry for entry in client.get_model_repository_index()}
    assert index["add_sub"] == {"name": "add_sub", "version": "1", "state": "READY", "reason": ""}
    reasons = {name: entry["reason"] for name, entry in index.items() if entry["state"] == "UNAVAILABLE"}
    assert set(reasons) == {"no_model", "bad_config", "contradiction", "no_version", "no_file"}
    assert "max_batch_sise" in reasons["bad_config"]
    assert "'x'" in reasons["contradiction"]
    assert "no_version/1/model.onnx" in reasons["no_version"]
    assert "model.onnx" in reasons["no_file"]
    assert "model" in reasons["no_model"]
    assert client.is_model_ready("add_sub")
    assert not client.is_model_ready("no_model")
    assert not client.is_model_ready("nobody")
    assert not client.is_server_ready()
    status, message = refused(infer, client, "bad_config", x=("FP32", np.zeros(1, "f4")))
    assert status == "503"
    assert "max_batch_sise" in message


@pytest.mark.parametrize("model", ["add_sub", "add_sub_auto"])
@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("batch", [1, 8])
def test_sum_and_difference(client: Any, model: str, binary: bool, batch: int) -> None:
    a = np.arange(batch * 16, dtype=np.int32).reshape(batch, 16)
    b = np.full_like(a, 3)
    result = infer(client, model, binary, INPUT0=("INT32", a), INPUT1=("INT32", b))
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), a + b)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), a - b)


@pytest.mark.parametrize("output_binary", [True, False])
def test_inputs_and_outputs_in_json_and_binary_can_be_mixed(client: Any, output_binary: bool) -> None:
    a = np.arange(16, dtype=np.int32).reshape(1, 16)
    inputs = [tensor("INPUT0", a, "INT32", True), tensor("INPUT1", a, "INT32", False)]
    outputs = [
        triton.InferRequestedOutput("OUTPUT1", binary_data=not output_binary),
        triton.InferRequestedOutput("OUTPUT0", binary_data=output_binary),
    ]
    result = client.infer("add_sub", inputs, outputs=outputs, request_id="my id")
    assert result.get_response()["id"] == "my id"
    assert [output["name"] for output in result.get_response()["outputs"]] == ["OUTPUT1", "OUTPUT0"]
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), 2 * a)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), 0 * a)


# This client sends FP16 in binary form only.
@pytest.mark.parametrize(
    ("datatype", "binary"),
    [(name, form) for name in repository.DATATYPES for form in (True, False) if form or name != "FP16"],
)
@pytest.mark.parametrize("length", [0, 1, 3, 1000])
def test_every_datatype_comes_back_as_it_went(client: Any, datatype: str, binary: bool, length: int) -> None:
    dtype = np.dtype(repository.DATATYPES[datatype][1])
    if dtype.kind in "iu":
        value = np.resize(np.array([np.iinfo(dtype).min, np.iinfo(dtype).max, 1], dtype), length)
    elif dtype.kind == "f":
        value = np.resize(np.array([-0.1, np.finfo(dtype).max, np.finfo(dtype).tiny, 0.0], dtype), length)
    else:
        value = np.resize(np.array([True, False, False]), length)
    result = infer(client, f"id_{datatype}", binary, x=(datatype, value)).as_numpy("y")
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, value)


def test_bf16_comes_back_in_binary_form_and_is_refused_in_json(front: FrontEnd, client: Any) -> None:
    value = np.array([1.5, -2.0, 3e38], ml_dtypes.bfloat16)
    np.testing.assert_array_equal(infer(client, "id_BF16", x=("BF16", value)).as_numpy("y"), value)
    inputs = [{"name": "x", "shape": [1], "datatype": "BF16", "data": [1.5]}]
    body = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    status, answer = front.get("/v2/models/id_BF16/infer", body)
    assert (status, "BF16" in answer["error"]) == (400, True)


def test_fp16_can_be_sent_and_received_in_json(front: FrontEnd) -> None:
    inputs = [{"name": "x", "shape": [3], "datatype": "FP16", "data": [0.1, 65504, -2]}]
    status, answer = front.get("/v2/models/id_FP16/infer", json.dumps({"inputs": inputs}).encode())
    assert status == 200
    assert np.array_equal(np.float16(answer["outputs"][0]["data"]), np.float16([0.1, 65504, -2]))


@pytest.mark.parametrize("binary", [True, False])
def test_nan_and_infinity_come_back(client: Any, binary: bool) -> None:
    value = np.array([np.nan, np.inf, -np.inf, 1], np.float32)
    np.testing.assert_array_equal(infer(client, "id_FP32", binary, x=("FP32", value)).as_numpy("y"), value)


@pytest.mark.parametrize("shape", [(), (1,), (2, 3, 4), (2, 0, 4), (1, 1, 1)])
def test_rank_and_shape_are_kept(client: Any, shape: tuple[int, ...]) -> None:
    model, datatype, dtype = ("id_scalar", "INT64", "i8") if shape == () else ("id_rank3", "FP32", "f4")
    value = np.ones(shape, dtype)
    if len(shape) == 1:
        assert "does not fit" in refused(infer, client, model, x=(datatype, value))[1]
        return
    assert infer(client, model, x=(datatype, value)).as_numpy("y").shape == shape


def test_outputs_that_are_larger_than_expected_arrive_whole(client: Any) -> None:
    x = np.arange(1000, dtype=np.float32)
    for count in (1, 3, 500, 2, 1000):
        result = infer(client, "repeat", x=("FP32", x), count=("INT64", np.array([count], np.int64)))
        np.testing.assert_array_equal(result.as_numpy("y"), np.tile(x, count))


def test_a_model_that_fails_says_why_and_goes_on(client: Any) -> None:
    for _ in range(3):
        status, message = refused(
            infer, client, "strict_add", a=("FP32", np.zeros(2, "f4")), b=("FP32", np.zeros(3, "f4"))
        )
        assert status == "500"
        assert "strict_add" in message
    ones = np.ones(4, np.float32)
    assert infer(client, "strict_add", a=("FP32", ones), b=("FP32", ones)).as_numpy("y").tolist() == [2.0] * 4


def test_a_bad_request_shows_its_fault_in_the_client(client: Any) -> None:
    a = np.zeros((1, 16), np.int32)
    status, message = refused(infer, client, "add_sub", INPUT0=("INT32", a))
    assert (status, "INPUT1" in message) == ("400", True)
    nine = np.zeros((9, 16), np.int32)
    assert "1 to 8" in refused(infer, client, "add_sub", INPUT0=("INT32", nine), INPUT1=("INT32", nine))[1]
    assert "unknown model" in refused(infer, client, "nobody", x=("INT32", a))[1]
    assert refused(client.infer, "add_sub", [], model_version="7")[0] == "404"


def test_many_clients_at_once_get_their_own_answers(front: FrontEnd) -> None:
    def one(seed: int) -> bool:
        value = np.random.default_rng(seed).random(50_000, np.float32)
        with triton.InferenceServerClient(front.url) as client:  # a client belongs to one thread
            return bool((infer(client, "id_FP32", x=("FP32", value)).as_numpy("y") == value).all())

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(one, range(64)))


def test_the_asyncio_client_works(front: FrontEnd) -> None:
    async def scenario() -> list[float]:
        async with triton_aio.InferenceServerClient(front.url) as client:
            values = [np.full(10, i, np.float32) for i in range(20)]
            results = await asyncio.gather(
                *(client.infer("id_FP32", [tensor("x", value, "FP32", True)]) for value in values)
            )
            return [float(result.as_numpy("y")[0]) for result in results]

    assert asyncio.run(scenario()) == [float(i) for i in range(20)]


def test_a_request_with_a_deadline_is_answered(client: Any) -> None:
    x = tensor("x", np.ones(4, np.float32), "FP32", True)
    assert client.infer("id_FP32", [x], timeout=20_000_000, priority=1).as_numpy("y").tolist() == [1.0] * 4


def test_the_expected_output_of_a_published_model(client: Any, tmp_path: Path) -> None:
    model = repository.package_file("onnx", "backend/test/data/light/light_squeezenet.onnx")
    repository.add(tmp_path, "squeezenet", model)
    with serving(tmp_path) as started:
        started.wait_until_loaded()
        assert started.get("/v2/health/ready")[0] == 200
        session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        name = session.get_inputs()[0].name
        image = np.random.default_rng(0).random((1, 3, 224, 224), np.float32)
        (expected,) = session.run(None, {name: image})
        with triton.InferenceServerClient(started.url) as other:
            result = infer(other, "squeezenet", **{name: ("FP32", image)})
        np.testing.assert_allclose(result.as_numpy(session.get_outputs()[0].name), expected, rtol=1e-5)
        assert end(started.process) == 0
