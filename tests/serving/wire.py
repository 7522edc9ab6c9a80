"""An HTTP server in this process, and connections to it that send bytes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import uvloop

from polymux.core.dtype import DType
from polymux.metrics.exposition import Metrics
from polymux.serving.http_app import HttpApp
from polymux.serving.http_door import Door
from polymux.serving.http_server import bind, serve_http
from polymux.serving.limits import Limits
from polymux.serving.models import Models, ModelState, ModelVersion
from tests.unit.serving.fake_model import FakeRunner, loaded, signature, tensor

SUM = signature([tensor("x", DType.F32, (None,))], [tensor("sum", DType.F32, ())])
LIMITS = Limits(body_nbytes=1 << 20, header_nbytes=8192)
REQUEST = json.dumps(
    {"inputs": [{"name": "x", "shape": [3], "datatype": "FP32", "data": [1, 2, 3]}]}, separators=(",", ":")
).encode()
LAST = b"GET /v2/health/live HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
LIVE = b"GET /v2/health/live HTTP/1.1\r\nhost: a\r\n\r\n"


class Wire:
    """A running server and connections to it."""

    def __init__(self, port: int, runner: FakeRunner) -> None:
        self.port = port
        self.runner = runner

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def send(self, data: bytes) -> list[tuple[int, dict[str, str], bytes]]:
        """Send bytes and return all answers until the server closes the connection."""
        reader, writer = await self.open()
        writer.write(data)
        received = await read_all(reader)
        writer.close()
        return answers(received)


async def read_all(reader: asyncio.StreamReader) -> bytes:
    received = b""
    try:
        while piece := await asyncio.wait_for(reader.read(65536), 10):
            received += piece
    except ConnectionError:
        pass
    return received


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
    ((status, headers, _),) = answers(head, only_head=True)
    return status, headers, await reader.readexactly(int(headers.get("content-length", "0")))


def answers(data: bytes, only_head: bool = False) -> list[tuple[int, dict[str, str], bytes]]:
    found = []
    while data:
        head, _, data = data.partition(b"\r\n\r\n")
        first, *fields = head.decode("latin-1").split("\r\n")
        headers = {
            name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)
        }
        length = 0 if only_head else int(headers.get("content-length", "0"))
        found.append((int(first.split()[1]), headers, data[:length]))
        data = data[length:]
    return found


def on_wire(
    scenario: Callable[[Wire], Awaitable[Any]], limits: Limits = LIMITS, door: Door | None = None
) -> Any:
    """Run a scenario against a server; afterwards no buffer may be left."""
    runner = FakeRunner(lambda x: [x.sum(dtype=np.float32)])
    models = Models()
    models.put(ModelVersion("sum", 1, ModelState.READY, "", loaded(runner, SUM)))

    async def main() -> Any:
        listener = bind("127.0.0.1", 0)
        listener.listen(128)
        app = HttpApp(models, limits, Metrics(dict))
        server = asyncio.create_task(serve_http(app, limits, listener, door or Door(limits)))
        try:
            return await scenario(Wire(listener.getsockname()[1], runner))
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait_for(server, 20)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
        result = loop.run(main())
    assert runner.live == set()
    return result


def exchange(data: bytes, limits: Limits = LIMITS) -> list[tuple[int, dict[str, str], bytes]]:
    return on_wire(lambda wire: wire.send(data), limits)


def post(body: bytes, *fields: str, path: str = "/v2/models/sum/infer") -> bytes:
    head = "\r\n".join([f"POST {path} HTTP/1.1", "host: a", *fields])
    return head.encode() + b"\r\n\r\n" + body


def chunked(*pieces: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (*pieces, b""))
