"""More requests or connections than the front end can look at: each is answered or refused in words, in its order."""

from __future__ import annotations

import asyncio
import json

import pytest

from polymux.serving.http_door import Door
from polymux.serving.limits import Limits
from tests.serving.wire import (
    LAST,
    LIMITS,
    LIVE,
    REQUEST,
    Wire,
    answers,
    chunked,
    on_wire,
    post,
    read_all,
    read_answer,
)

POST = post(REQUEST, f"content-length: {len(REQUEST)}")
BUSY = "more requests come at once than the front end can look at; send the request again later"


class Full(Door):
    """A door that lets nobody in for the sums, however few there are."""

    def is_full(self, path: bytes) -> bool:
        return path.endswith(b"/infer")


def refused(answer: tuple[int, dict[str, str], bytes]) -> bool:
    status, headers, body = answer
    return (status, headers["retry-after"], json.loads(body)) == (503, "1", {"error": BUSY})


@pytest.mark.parametrize(
    "request_",
    [POST, post(chunked(REQUEST[:20], REQUEST[20:]), "transfer-encoding: chunked")],
    ids=["length", "chunks"],
)
def test_a_refused_request_gets_the_reason_and_its_connection_goes_on(request_: bytes) -> None:
    door = Full(LIMITS)
    found = on_wire(lambda wire: wire.send(request_ + request_ + LIVE + request_ + LAST), door=door)
    assert [refused(answer) for answer in found if answer[0] == 503] == [True] * 2
    assert [status for status, _, _ in found] == [503, 503, 200, 200, 200], (
        "the fourth waits behind one that runs"
    )
    (family,) = door.collect()
    samples = {s.labels["reason"]: s.value for s in family.samples if s.name.endswith("_total")}
    assert samples["busy"] == 2


def test_a_large_body_of_a_refused_request_is_skipped_wherever_it_is_cut() -> None:
    body = b"x" * 300_000

    async def scenario(wire: Wire) -> list[int]:
        reader, writer = await wire.open()
        data = post(body, f"content-length: {len(body)}") + LIVE
        statuses = []
        for start in range(0, len(data), 50_001):
            writer.write(data[start : start + 50_001])
            await writer.drain()
            await asyncio.sleep(0)
        for _ in range(2):
            status, _, _ = await read_answer(reader)
            statuses.append(status)
        writer.close()
        return statuses

    assert on_wire(scenario, door=Full(LIMITS)) == [503, 200]


def test_a_body_that_is_not_asked_for_ends_the_connection() -> None:
    request = post(b"", f"content-length: {len(REQUEST)}", "expect: 100-continue")
    found = on_wire(lambda wire: wire.send(request), door=Full(LIMITS))
    assert [(status, headers["connection"]) for status, headers, _ in found] == [(503, "close")]


def test_a_connection_that_is_not_to_be_kept_ends_with_the_refusal() -> None:
    request = post(REQUEST, f"content-length: {len(REQUEST)}", "connection: close")
    found = on_wire(lambda wire: wire.send(request), door=Full(LIMITS))
    assert [(status, headers["connection"]) for status, headers, _ in found] == [(503, "close")]


def test_a_request_behind_one_that_runs_waits_for_its_turn() -> None:
    async def scenario(wire: Wire) -> list[int]:
        wire.runner.gate = asyncio.Event()
        door.full = False
        reader, writer = await wire.open()
        writer.write(POST)
        while not wire.runner.hints:
            await asyncio.sleep(0.01)
        door.full = True
        writer.write(POST + LAST)
        await asyncio.sleep(0.05)
        wire.runner.gate.set()
        received = await read_all(reader)
        writer.close()
        return [status for status, _, _ in answers(received)]

    class Switched(Door):
        full = False

        def is_full(self, path: bytes) -> bool:
            return self.full and path.endswith(b"/infer")

    door = Switched(LIMITS)
    assert on_wire(scenario, door=door) == [200, 200, 200]


def test_a_connection_too_many_is_told_so_and_ends() -> None:
    limits = Limits(body_nbytes=1 << 20, header_nbytes=8192, connections=3)

    async def scenario(wire: Wire) -> tuple[list[tuple[int, dict[str, str], bytes]], list[int]]:
        kept = []
        for _ in range(3):
            reader, writer = await wire.open()
            writer.write(LIVE)
            await read_answer(reader)
            kept.append((reader, writer))
        surplus = await wire.send(POST)
        statuses = []
        for reader, writer in kept:
            writer.write(POST)
            status, _, _ = await read_answer(reader)
            statuses.append(status)
            writer.close()
        return surplus, statuses

    ((status, headers, body),), statuses = on_wire(scenario, limits)
    assert (status, headers["connection"]) == (503, "close")
    assert json.loads(body) == {"error": "the front end has 3 connections, its limit; connect again later"}
    assert statuses == [200] * 3


NO_ROOM = Limits(body_nbytes=1 << 20, header_nbytes=8192, connections=0, surplus_connections=2)


def test_a_surplus_request_is_answered_however_it_is_cut_and_read_to_its_end() -> None:
    body = b"x" * 300_000
    data = post(body, f"content-length: {len(body)}")

    async def scenario(wire: Wire) -> list[int]:
        statuses = []
        for cut in (10, 100, 200_000, len(data)):
            reader, writer = await wire.open()
            writer.write(data[:cut])
            await writer.drain()
            status, _, _ = await read_answer(reader)
            writer.write(data[cut:])  # the connection takes it, so that nobody loses the answer by a reset
            await writer.drain()
            assert await read_all(reader) == b""
            writer.close()
            statuses.append(status)
        return statuses

    assert on_wire(scenario, NO_ROOM) == [503] * 4


def test_a_surplus_request_for_a_header_gets_no_body() -> None:
    head = b"HEAD /v2/health/live HTTP/1.1\r\nhost: a\r\n\r\n"
    received = on_wire(lambda wire: _exchange(wire, head), NO_ROOM)
    assert received.startswith(b"HTTP/1.1 503 ")
    assert received.endswith(b"\r\n\r\n")


def test_surplus_clients_that_say_nothing_are_told_in_the_end_and_others_wait_for_their_places(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("polymux.serving.http_surplus._PATIENCE_S", 0.2)

    async def scenario(wire: Wire) -> list[bytes]:
        return await asyncio.gather(*[_exchange(wire, b"") for _ in range(5)])

    received = on_wire(scenario, NO_ROOM)
    assert [data[:12] for data in received] == [b"HTTP/1.1 503"] * 5


async def _exchange(wire: Wire, data: bytes) -> bytes:
    reader, writer = await wire.open()
    writer.write(data)
    received = await read_all(reader)
    writer.close()
    return received


def test_a_client_that_says_nothing_does_not_keep_its_connection() -> None:
    limits = Limits(body_nbytes=1 << 20, header_nbytes=8192, body_idle_s=0.1)

    async def scenario(wire: Wire) -> list[bytes]:
        received = []
        for beginning in (b"", POST[:30]):
            reader, writer = await wire.open()
            writer.write(beginning)
            received.append(await read_all(reader))
            writer.close()
        return received

    assert on_wire(scenario, limits) == [b"", b""]


def test_many_requests_at_once_are_all_answered_or_refused() -> None:
    limits = Limits(body_nbytes=1 << 20, header_nbytes=8192, unseen_requests=20)

    async def scenario(wire: Wire) -> list[int]:
        connections = [await wire.open() for _ in range(200)]
        for _, writer in connections:
            writer.write(POST)
        statuses = []
        for reader, writer in connections:
            status, _, _ = await read_answer(reader)
            statuses.append(status)
            writer.close()
        return statuses

    statuses = on_wire(scenario, limits)
    assert set(statuses) <= {200, 503}
    assert statuses.count(200) >= 16
