"""The front end over a real runtime in this process: whatever becomes of a request, its memory returns."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polymux
from polymux.client import Client
from polymux.metrics.exposition import Metrics
from polymux.serving.http_app import HttpApp
from polymux.serving.lifecycle import Lifecycle
from polymux.serving.limits import Limits
from polymux.serving.loader import DirectLoader
from polymux.serving.models import Models
from tests.serving import repository
from tests.unit.serving.asgi import Answer, call

SEGMENT_NBYTES = 64 << 20


class Front:
    """The application with its models, and the connection that they use."""

    def __init__(self, root: Path) -> None:
        self.client = polymux.connect(start=True, name="test", segment_nbytes=SEGMENT_NBYTES)
        self.models = Models()
        self.lifecycle = Lifecycle(root, self.models, self.client, _no_other, DirectLoader())
        self.app = HttpApp(self.models, Limits(), Metrics(dict))
        asyncio.run(self._load())

    async def _load(self) -> None:
        loading = asyncio.create_task(self.lifecycle.run())
        while not self.models.are_ready():
            await asyncio.sleep(0.01)
            assert not loading.done()
        loading.cancel()

    def run(self, scenario: Callable[[], Awaitable[Any]]) -> Any:
        """Run a scenario; afterwards the memory in use must be what it was before."""

        async def main() -> Any:
            before = self.live_nbytes()
            result = await scenario()
            for _ in range(500):
                if self.live_nbytes() == before:
                    break
                await asyncio.sleep(0.01)
            assert self.live_nbytes() == before
            return result

        return asyncio.run(main())

    def live_nbytes(self) -> int:
        """Return the bytes that are allocated in the segment."""
        gc.collect()
        return self.client.memory()["live_nbytes"]


def _no_other() -> Client:
    raise AssertionError("the runtime of this process does not go away")


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    root: Path = tmp_path_factory.mktemp("models")
    repository.add(root, "id", repository.identity("FP32"))
    repository.add(root, "repeat", repository.repeat())
    repository.add(root, "strict_add", repository.strict_add())
    made = Front(root)
    yield made
    made.lifecycle.close()


def binary(model: str, **inputs: np.ndarray[Any, Any]) -> tuple[str, bytes, list[tuple[str, str]]]:
    """Return path, body and headers of a binary request."""
    names = {"float32": "FP32", "int64": "INT64"}
    tensors = [
        {
            "name": name,
            "shape": list(value.shape),
            "datatype": names[value.dtype.name],
            "parameters": {"binary_data_size": value.nbytes},
        }
        for name, value in inputs.items()
    ]
    text = json.dumps({"inputs": tensors, "parameters": {"binary_data_output": True}}).encode()
    body = text + b"".join(value.tobytes() for value in inputs.values())
    return f"/v2/models/{model}/infer", body, [("Inference-Header-Content-Length", str(len(text)))]


X = np.arange(100_000, dtype=np.float32)


def test_an_answered_request_returns_its_memory(front: Front) -> None:
    path, body, headers = binary("id", x=X)

    async def scenario() -> list[Answer | None]:
        return [await call(front.app, "POST", path, [body], headers) for _ in range(20)]

    for answer in front.run(scenario):
        assert answer is not None
        assert answer.status == 200
        assert answer.body.endswith(X.tobytes())


def test_a_client_that_goes_away_while_it_sends_returns_its_memory(front: Front) -> None:
    path, body, headers = binary("id", x=X)

    async def scenario() -> list[Answer | None]:
        ends = range(0, len(body), 50_000)
        return [await call(front.app, "POST", path, [body[:end]], headers, disconnect=True) for end in ends]

    assert front.run(scenario) == [None] * 9


def test_a_request_that_nobody_waits_for_returns_its_memory(front: Front) -> None:
    path, body, headers = binary("id", x=X)

    async def scenario() -> None:
        for _ in range(20):
            handler = asyncio.create_task(call(front.app, "POST", path, [body], headers))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            handler.cancel()
            await asyncio.wait({handler})

    front.run(scenario)


def test_a_model_that_fails_returns_its_memory(front: Front) -> None:
    path, body, headers = binary("strict_add", a=X, b=X[:-1])

    async def scenario() -> list[Answer | None]:
        return [await call(front.app, "POST", path, [body], headers) for _ in range(5)]

    assert [answer.status for answer in front.run(scenario)] == [500] * 5


def test_outputs_that_were_too_small_return_their_memory(front: Front) -> None:
    async def scenario() -> list[int]:
        statuses = []
        for count in (1, 7, 30, 2):
            path, body, headers = binary("repeat", x=X, count=np.array([count], np.int64))
            answer = await call(front.app, "POST", path, [body], headers)
            assert answer is not None
            assert answer.body.endswith(X.tobytes())
            statuses.append(answer.status)
        return statuses

    assert front.run(scenario) == [200] * 4


def test_a_segment_that_is_full_is_answered_503_and_serves_again(front: Front) -> None:
    path, body, headers = binary("repeat", x=X, count=np.array([1000], np.int64))
    small_path, small_body, small_headers = binary("id", x=X)

    async def scenario() -> list[int]:
        statuses = []
        for arguments in ((path, body, headers), (small_path, small_body, small_headers)):
            answer = await call(front.app, "POST", arguments[0], [arguments[1]], arguments[2])
            assert answer is not None
            statuses.append(answer.status)
        return statuses

    assert front.run(scenario) == [503, 200]


def test_more_requests_than_fit_at_once_are_all_answered_and_return_their_memory(front: Front) -> None:
    path, body, headers = binary("id", x=X)

    async def scenario() -> list[Answer | None]:
        calls = [call(front.app, "POST", path, [body], headers) for _ in range(200)]
        return list(await asyncio.gather(*calls))

    statuses = [answer.status for answer in front.run(scenario)]
    assert set(statuses) <= {200, 503}
    assert statuses.count(200) >= 50
