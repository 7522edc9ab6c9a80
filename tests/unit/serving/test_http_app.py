from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from polymux.core.dtype import DType
from polymux.core.errors import (
    PolymuxError,
    QueueFull,
    SegmentFull,
    ServerGone,
    task_failed,
)
from polymux.core.status import TaskStatus
from polymux.metrics.exposition import Metrics
from polymux.serving.http_app import HttpApp
from polymux.serving.limits import Limits
from polymux.serving.models import Models, ModelState, ModelVersion
from tests.unit.metrics import states
from tests.unit.serving.asgi import Answer, call
from tests.unit.serving.fake_model import FakeRunner, loaded, signature, tensor

ADD = signature(
    [tensor("a", DType.F32, (None,)), tensor("b", DType.F32, (None,))], [tensor("sum", DType.F32, (None,))]
)
REQUEST = {
    "id": "r1",
    "inputs": [
        {"name": "a", "shape": [2], "datatype": "FP32", "data": [1, 2]},
        {"name": "b", "shape": [2], "datatype": "FP32", "data": [10, 20]},
    ],
}
INFER = "/v2/models/add/infer"


class Front:
    """The application over one model `add` of versions 1 and 2, one that failed, and one that loads."""

    def __init__(
        self,
        function: Any = lambda a, b: [a + b],
        limits: Limits | None = None,
        status: Callable[[], Any] | None = None,
    ) -> None:
        self.runner = FakeRunner(function)
        self.models = Models()
        for version in (2, 1):
            self.models.put(ModelVersion("add", version, ModelState.READY, "", loaded(self.runner, ADD)))
        self.app = HttpApp(self.models, limits or Limits(), Metrics(status or dict))

    def call(
        self, method: str, path: str, body: bytes | None = None, headers: Sequence[tuple[str, str]] = ()
    ) -> Answer:
        answer = asyncio.run(call(self.app, method, path, [] if body is None else [body], headers))
        assert answer is not None
        assert answer.headers["content-length"] == str(len(answer.body))
        assert self.runner.live == set()
        return answer

    def infer(self, document: Any = REQUEST, path: str = INFER) -> Answer:
        return self.call("POST", path, json.dumps(document).encode())


def test_the_server_describes_itself() -> None:
    described = Front().call("GET", "/v2").json()
    assert described["name"] == "polymux"
    assert "binary_tensor_data" in described["extensions"]


@pytest.mark.parametrize("path", ["/v2", "/v2/", "/v2/health/live", "/v2/health/ready", "/v2/models/add"])
def test_head_is_answered_like_get(path: str) -> None:
    assert Front().call("HEAD", path).status == 200


def test_the_server_is_ready_exactly_when_all_models_are() -> None:
    front = Front()
    assert front.call("GET", "/v2/health/ready").json() == {"ready": True, "live": True}
    for state in (ModelState.LOADING, ModelState.UNAVAILABLE):
        front.models.put(ModelVersion("other", 1, state, "why"))
        answer = front.call("GET", "/v2/health/ready")
        assert (answer.status, answer.json()["ready"]) == (400, False)
        assert front.call("GET", "/v2/health/live").json() == {"live": True}


def test_a_model_describes_itself() -> None:
    assert Front().call("GET", "/v2/models/add").json() == {
        "name": "add",
        "versions": ["1", "2"],
        "platform": "onnxruntime_onnx",
        "inputs": [
            {"name": "a", "datatype": "FP32", "shape": [-1]},
            {"name": "b", "datatype": "FP32", "shape": [-1]},
        ],
        "outputs": [{"name": "sum", "datatype": "FP32", "shape": [-1]}],
    }
    assert Front().call("GET", "/v2/models/add/versions/1").json()["versions"] == ["1"]
    assert Front().call("GET", "/v2/models/add/config").json()["platform"] == "onnxruntime_onnx"


def test_readiness_of_a_model_is_200_503_or_404() -> None:
    front = Front()
    front.models.put(ModelVersion("bad", 1, ModelState.UNAVAILABLE, "no such file"))
    assert front.call("GET", "/v2/models/add/ready").json() == {"name": "add", "ready": True}
    assert front.call("GET", "/v2/models/add/versions/2/ready").status == 200
    assert front.call("GET", "/v2/models/bad/ready").status == 503
    assert front.call("GET", "/v2/models/nobody/ready").status == 404
    assert front.call("GET", "/v2/models/add/versions/3/ready").status == 404


def test_the_index_lists_every_model_with_its_state_and_reason() -> None:
    front = Front()
    front.models.put(ModelVersion("bad", None, ModelState.UNAVAILABLE, "no version directory"))
    full = front.call("POST", "/v2/repository/index").json()
    assert {"name": "bad", "version": "", "state": "UNAVAILABLE", "reason": "no version directory"} in full
    ready = front.call("POST", "/v2/repository/index", b'{"ready": true}').json()
    assert [entry["name"] for entry in ready] == ["add", "add"]
    assert front.call("POST", "/v2/repository/index", b"{}").json() == full


@pytest.mark.parametrize("body", [b"[]", b"{", b'{"ready": 1}', b"null", b" " * 100_000])
def test_a_bad_body_for_the_index_is_refused(body: bytes) -> None:
    assert Front().call("POST", "/v2/repository/index", body).status in (400, 413)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v1",
        "/v2/nothing",
        "/v2/models",
        "/v2/models/add/nothing",
        "/v2/models/add/infer/more",
        "/v2/models/add/versions",
        "/v2/models/add/versions/x/infer",
        "/v2/models/add/versions/-1/infer",
        "/v2/models/add/versions/" + "9" * 5000,
        "/v2/models/a%2fdd/ready",
        "/v2//models/add",
    ],
)
def test_an_unknown_path_is_404_with_the_error_object(path: str) -> None:
    answer = Front().call("GET", path)
    assert answer.status == 404
    assert set(answer.json()) == {"error"}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v2/health/live"),
        ("DELETE", "/v2/models/add"),
        ("GET", INFER),
        ("PUT", INFER),
        ("GET", "/v2/repository/index"),
    ],
)
def test_a_wrong_method_is_405_and_names_the_right_ones(method: str, path: str) -> None:
    answer = Front().call(method, path)
    assert answer.status == 405
    assert answer.headers["allow"] in ("GET, HEAD", "POST")


@pytest.mark.parametrize(("path", "version"), [(INFER, "2"), ("/v2/models/add/versions/1/infer", "1")])
def test_an_inference_answers_with_the_sum(path: str, version: str) -> None:
    assert Front().infer(path=path).json() == {
        "model_name": "add",
        "model_version": version,
        "id": "r1",
        "outputs": [{"name": "sum", "datatype": "FP32", "shape": [2], "data": [11.0, 22.0]}],
    }


def test_a_binary_inference_answers_in_binary() -> None:
    front = Front()
    inputs = [
        {"name": name, "shape": [2], "datatype": "FP32", "parameters": {"binary_data_size": 8}}
        for name in "ab"
    ]
    text = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    body = text + np.array([1, 2, 10, 20], "<f4").tobytes()
    answer = front.call("POST", INFER, body, [("Inference-Header-Content-Length", str(len(text)))])
    length = int(answer.headers["inference-header-content-length"])
    assert answer.headers["content-type"] == "application/octet-stream"
    assert np.frombuffer(answer.body[length:], "<f4").tolist() == [11.0, 22.0]


def test_the_content_type_of_a_request_does_not_matter() -> None:
    body = json.dumps(REQUEST).encode()
    assert Front().call("POST", INFER, body, [("Content-Type", "text/plain")]).status == 200


@pytest.mark.parametrize("name", ["Inference-Header-Content-Length", "Content-Length"])
@pytest.mark.parametrize("value", ["-5", "abc", "1.5", "+3", "", " ", "1e3", "0x10", "1_0", "²"])
def test_a_length_header_that_is_no_number_is_refused(name: str, value: str) -> None:
    answer = Front().call("POST", INFER, json.dumps(REQUEST).encode(), [(name, value)])
    assert answer.status == 400
    assert name.lower() in answer.json()["error"]


def test_a_length_header_given_twice_is_refused() -> None:
    header = ("Inference-Header-Content-Length", "10")
    assert Front().call("POST", INFER, b"{}", [header, header]).status == 400


def test_a_compressed_body_is_refused_by_name() -> None:
    answer = Front().call("POST", INFER, b"\x1f\x8b", [("Content-Encoding", "gzip")])
    assert answer.status == 415
    assert "gzip" in answer.json()["error"]


def test_a_model_that_is_not_ready_is_503_with_the_reason() -> None:
    front = Front()
    front.models.put(ModelVersion("bad", 1, ModelState.UNAVAILABLE, "wrong opset"))
    answer = front.infer(path="/v2/models/bad/infer")
    assert answer.status == 503
    assert "wrong opset" in answer.json()["error"]
    assert front.infer(path="/v2/models/nobody/infer").status == 404


def failed(status: TaskStatus) -> PolymuxError:
    return task_failed(status, "1.0", 3, "add", "the story")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (QueueFull("full"), 503),
        (SegmentFull("full"), 503),
        (ServerGone("gone"), 503),
        (failed(TaskStatus.OUT_OF_MEMORY), 503),
        (failed(TaskStatus.REJECTED), 503),
        (failed(TaskStatus.BAD_ARGUMENT), 400),
        (failed(TaskStatus.KERNEL_FAILED), 500),
        (failed(TaskStatus.KERNEL_CRASHED), 500),
        (RuntimeError("a defect"), 500),
    ],
)
def test_a_failure_of_the_core_has_its_status_and_leaves_no_buffer(error: Exception, status: int) -> None:
    def fail(*_: Any) -> Any:
        raise error

    answer = Front(fail).infer()
    assert answer.status == status
    assert set(answer.json()) == {"error"}
    assert ("defect" in answer.json()["error"]) is False


def test_a_client_that_goes_away_while_sending_leaves_no_buffer() -> None:
    front = Front()
    text = json.dumps(
        {
            "inputs": [
                {"name": name, "shape": [2], "datatype": "FP32", "parameters": {"binary_data_size": 8}}
                for name in "ab"
            ]
        }
    ).encode()
    headers = [("Inference-Header-Content-Length", str(len(text)))]
    answer = asyncio.run(call(front.app, "POST", INFER, [text, b"1234"], headers, disconnect=True))
    assert answer is None
    assert front.runner.allocated_nbytes == 16
    assert front.runner.live == set()


def test_a_client_that_pauses_too_long_is_answered_408() -> None:
    front = Front(limits=Limits(body_idle_s=0.0))

    answer = asyncio.run(call(front.app, "POST", INFER, [b"{"], stalls=True))
    assert answer is not None
    assert (answer.status, answer.headers["connection"]) == (408, "close")


def test_priority_and_timeout_reach_the_core_as_hints() -> None:
    front = Front()
    front.infer({**REQUEST, "parameters": {"priority": 3, "timeout": 60_000_000}})
    ((priority, deadline_ns),) = front.runner.hints
    assert priority == 3
    assert deadline_ns is not None
    front.infer()
    assert front.runner.hints[1] == (0, None)


def test_a_timeout_answers_503_and_the_buffers_are_given_back_when_the_task_ends() -> None:
    front = Front()

    async def scenario() -> Answer | None:
        front.runner.gate = asyncio.Event()
        body = json.dumps({**REQUEST, "parameters": {"timeout": 1}}).encode()
        answer = await call(front.app, "POST", INFER, [body])
        assert len(front.runner.live) == 2
        front.runner.gate.set()
        while front.runner.live:
            await asyncio.sleep(0)
        return answer

    answer = asyncio.run(scenario())
    assert answer is not None
    assert answer.status == 503
    assert "1 us" in answer.json()["error"]


def test_a_handler_that_is_cancelled_leaves_the_buffers_to_the_running_task() -> None:
    front = Front()

    async def scenario() -> None:
        front.runner.gate = asyncio.Event()
        handler = asyncio.create_task(call(front.app, "POST", INFER, [json.dumps(REQUEST).encode()]))
        while not front.runner.hints:
            await asyncio.sleep(0)
        handler.cancel()
        with pytest.raises(asyncio.CancelledError):
            await handler
        assert len(front.runner.live) == 2
        front.runner.gate.set()
        while front.runner.live:
            await asyncio.sleep(0)

    asyncio.run(scenario())


def test_an_early_answer_to_a_client_that_waits_for_100_continue_ends_the_connection() -> None:
    headers = [("Expect", "100-continue"), ("Content-Length", str(10**9))]
    answer = Front().call("POST", INFER, headers=headers)
    assert (answer.status, answer.headers["connection"]) == (413, "close")


def test_the_metrics_of_the_server_are_served_and_say_when_it_is_gone() -> None:
    answer = Front(status=states.state).call("GET", "/metrics")
    assert (answer.status, answer.headers["content-type"].split(";")[0]) == (200, "text/plain")
    assert b"polymux_up 1.0" in answer.body
    assert Front(status=states.state).call("POST", "/metrics", b"").status == 405

    def gone() -> Any:
        raise ServerGone("it went away")

    answer = Front(status=gone).call("GET", "/metrics", headers=[("Accept", "application/openmetrics-text")])
    assert (answer.status, answer.headers["content-type"].split(";")[0]) == (
        200,
        "application/openmetrics-text",
    )
    assert b"polymux_up 0.0" in answer.body
