"""The HTTP server byte by byte: what is not a valid request, what is too large, and how connections go on."""

from __future__ import annotations

import asyncio
import json
import os
import signal

import numpy as np
import pytest

from tests.serving.wire import (
    LAST,
    LIVE,
    REQUEST,
    Wire,
    chunked,
    exchange,
    on_wire,
    post,
    read_all,
    read_answer,
)


def test_a_request_with_a_length_and_one_in_chunks_get_the_same_answer() -> None:
    plain = exchange(post(REQUEST, f"content-length: {len(REQUEST)}") + LAST)
    in_chunks = exchange(post(chunked(REQUEST[:20], REQUEST[20:]), "transfer-encoding: chunked") + LAST)
    assert [status for status, _, _ in plain] == [200, 200]
    assert json.loads(plain[0][2])["outputs"][0] == {
        "name": "sum",
        "datatype": "FP32",
        "shape": [],
        "data": [6.0],
    }
    assert in_chunks[0][2] == plain[0][2]


SMUGGLING = {
    "two different lengths": post(b"{}", "content-length: 2", "content-length: 3"),
    "two equal lengths": post(b"{}", "content-length: 2", "content-length: 2"),
    "a length and chunks": post(chunked(REQUEST), "content-length: 5", "transfer-encoding: chunked"),
    "chunks and a length": post(chunked(REQUEST), "transfer-encoding: chunked", "content-length: 5"),
    "a negative length": post(b"{}", "content-length: -2"),
    "a length in words": post(b"{}", "content-length: two"),
    "a length with a sign": post(b"{}", "content-length: +2"),
    "a length beyond 64 bits": post(b"{}", "content-length: 99999999999999999999999"),
    "a bad chunk size": post(b"zz\r\n{}\r\n0\r\n\r\n", "transfer-encoding: chunked"),
    "a chunk size beyond 64 bits": post(b"fffffffffffffffff\r\n", "transfer-encoding: chunked"),
    "chunks that are not last": post(chunked(REQUEST), "transfer-encoding: chunked, gzip"),
    "a space before the colon": post(b"{}", "content-length : 2"),
    "a folded field": post(b"{}", "x: 1", " content-length: 2"),
    "no HTTP at all": b"hello\r\n\r\n",
    "TLS": bytes.fromhex("1603010200010001fc0303"),
    "a null byte in the path": b"GET /v2\x00 HTTP/1.1\r\nhost: a\r\n\r\n",
    "a path that is not ASCII": b"GET /v2/models/\xff HTTP/1.1\r\nhost: a\r\n\r\n",
}


@pytest.mark.parametrize("case", SMUGGLING)
def test_a_request_that_is_not_valid_http_is_answered_400_and_the_connection_ends(case: str) -> None:
    # What follows on the connection must never be taken as a request of its own.
    found = exchange(SMUGGLING[case] + LIVE)
    assert len(found) == 1
    status, headers, body = found[0]
    assert (status, headers["connection"]) == (400, "close")
    assert set(json.loads(body)) == {"error"}


@pytest.mark.parametrize(
    "fields",
    [
        ["x: " + "a" * 100_000],
        [f"x{i}: {'a' * 500}" for i in range(40)],
    ],
)
def test_a_header_beyond_the_limit_is_answered_431(fields: list[str]) -> None:
    found = exchange(post(b"", *fields))
    assert [status for status, _, _ in found] == [431]
    assert found[0][1]["connection"] == "close"


def test_a_path_beyond_the_limit_is_answered_431() -> None:
    assert exchange(b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nhost: a\r\n\r\n")[0][0] == 431


def test_a_header_field_that_never_ends_is_answered_431() -> None:
    async def scenario(wire: Wire) -> int:
        reader, writer = await wire.open()
        writer.write(b"GET /v2 HTTP/1.1\r\nx: ")
        answer = asyncio.create_task(read_answer(reader))
        while not answer.done():
            writer.write(b"a" * 1000)
            await asyncio.wait({answer}, timeout=0.01)
        writer.close()
        return answer.result()[0]

    assert on_wire(scenario) == 431


def test_a_trailer_beyond_the_limit_ends_the_connection() -> None:
    trailer = b"".join(b"x%d: %s\r\n" % (i, b"a" * 500) for i in range(40))
    body = chunked(REQUEST)[:-2] + trailer + b"\r\n"
    found = exchange(post(body, "transfer-encoding: chunked"))
    assert found[-1][0] == 431


def test_a_body_that_fills_the_socket_before_the_next_header_is_no_large_header() -> None:
    async def scenario(wire: Wire) -> list[int]:
        reader, writer = await wire.open()
        body = b" " * 100_000 + REQUEST
        writer.write(post(body, f"content-length: {len(body)}") + LIVE[:10])
        first = await read_answer(reader)
        writer.write(LIVE[10:])
        second = await read_answer(reader)
        writer.close()
        return [first[0], second[0]]

    assert on_wire(scenario) == [200, 200]


@pytest.mark.parametrize("nbytes", [(1 << 20) + 1, 80 << 20, 1 << 62])
def test_an_announced_body_beyond_the_limit_is_answered_413_at_once(nbytes: int) -> None:
    assert exchange(post(b"", f"content-length: {nbytes}", "connection: close"))[0][0] == 413


def test_after_413_the_rest_of_the_body_is_skipped_and_the_connection_goes_on() -> None:
    body = b"x" * (3 << 20)
    found = exchange(post(body, f"content-length: {len(body)}") + LAST)
    assert [status for status, _, _ in found] == [413, 200]


def test_a_body_in_chunks_beyond_the_limit_is_answered_413() -> None:
    body = chunked(*[b"x" * 100_000] * 20)
    assert exchange(post(body, "transfer-encoding: chunked") + LAST)[0][0] == 413


def test_100_continue_is_sent_when_the_body_is_wanted() -> None:
    async def scenario(wire: Wire) -> tuple[bytes, int]:
        reader, writer = await wire.open()
        writer.write(post(b"", f"content-length: {len(REQUEST)}", "expect: 100-continue"))
        interim = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
        writer.write(REQUEST)
        status, _, _ = await read_answer(reader)
        writer.close()
        return interim, status

    assert on_wire(scenario) == (b"HTTP/1.1 100 Continue\r\n\r\n", 200)


def test_a_refused_body_is_not_asked_for_and_the_connection_ends() -> None:
    found = exchange(post(b"", f"content-length: {80 << 20}", "expect: 100-continue"))
    assert [(status, headers["connection"]) for status, headers, _ in found] == [(413, "close")]


def test_pipelined_requests_are_all_answered_in_order() -> None:
    request = post(REQUEST, f"content-length: {len(REQUEST)}")
    found = exchange(request + LIVE + request + LAST)
    assert [status for status, _, _ in found] == [200] * 4
    assert [b"live" in body for _, _, body in found] == [False, True, False, True]


def test_head_has_the_length_but_no_body() -> None:
    async def scenario(wire: Wire) -> bytes:
        reader, writer = await wire.open()
        writer.write(b"HEAD /v2/health/live HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        received = await read_all(reader)
        writer.close()
        return received

    received = on_wire(scenario)
    assert b"200 OK" in received
    assert b"content-length: 13" in received
    assert received.endswith(b"\r\n\r\n")


def test_clients_that_go_away_anywhere_in_a_request_leave_nothing() -> None:
    binary = np.arange(5000, dtype="<f4").tobytes()
    inputs = [
        {"name": "x", "shape": [5000], "datatype": "FP32", "parameters": {"binary_data_size": len(binary)}}
    ]
    text = json.dumps({"inputs": inputs}).encode()
    fields = [f"content-length: {len(text) + len(binary)}", f"inference-header-content-length: {len(text)}"]
    request = post(text + binary, *fields)

    async def scenario(wire: Wire) -> int:
        for end in range(0, len(request), 997):
            _, writer = await wire.open()
            writer.write(request[:end])
            await writer.drain()
            writer.transport.abort()
        for _ in range(500):
            if not wire.runner.live:
                break
            await asyncio.sleep(0.01)
        return len(wire.runner.live)

    assert on_wire(scenario) == 0


def test_an_unfinished_request_does_not_keep_the_others_waiting() -> None:
    async def scenario(wire: Wire) -> list[int]:
        slow = [await wire.open() for _ in range(50)]
        for _, writer in slow:
            writer.write(post(REQUEST[:10], f"content-length: {len(REQUEST)}"))
        found = await wire.send(post(REQUEST, f"content-length: {len(REQUEST)}") + LAST)
        for _, writer in slow:
            writer.transport.abort()
        return [status for status, _, _ in found]

    assert on_wire(scenario) == [200, 200]


def test_a_request_that_runs_at_the_signal_is_answered_before_the_server_ends() -> None:
    async def scenario(wire: Wire) -> asyncio.Task[tuple[int, dict[str, str], bytes]]:
        wire.runner.gate = asyncio.Event()
        reader, writer = await wire.open()
        writer.write(post(REQUEST, f"content-length: {len(REQUEST)}"))
        while not wire.runner.hints:
            await asyncio.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)
        asyncio.get_running_loop().call_later(0.3, wire.runner.gate.set)
        answer = await read_answer(reader)
        writer.close()
        return answer

    status, headers, _ = on_wire(scenario)
    assert (status, headers["connection"]) == (200, "close")
