"""Whom the door lets in: as many as can be looked at soon, and always a few of each path."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

import pytest

from polymux.serving.http_door import Door
from polymux.serving.http_message import Receive, Scope, Send
from polymux.serving.limits import Limits

A, B, LIVE = b"/v2/models/a/infer", b"/v2/models/b/infer", b"/v2/health/live"


def let_in(door: Door, path: bytes, tries: int) -> int:
    count = 0
    for _ in range(tries):
        if not door.is_full(path):
            door.came(path)
            count += 1
    return count


def test_one_path_leaves_places_for_others() -> None:
    door = Door(Limits(unseen_requests=100))
    assert let_in(door, A, 1000) == 75
    assert let_in(door, B, 1000) == 25
    assert let_in(door, LIVE, 1000) == 16
    assert let_in(door, A, 1) == 0


def test_who_is_looked_at_makes_room() -> None:
    door = Door(Limits(unseen_requests=100))
    let_in(door, A, 1000)
    for _ in range(10):
        door.looked_at(A)
    assert let_in(door, A, 1000) == 10
    for _ in range(75):
        door.looked_at(A)
    assert let_in(door, A, 1000) == 75


def test_the_log_has_a_line_now_and_then_and_not_one_for_each(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    door = Door(Limits(connections=5), clock=lambda: now)
    with caplog.at_level(logging.WARNING):
        for _ in range(1000):
            assert "send the request again later" in door.refuse("busy")
        now = 60.0
        assert "5 connections, its limit" in door.refuse("connections")
    assert len(caplog.records) == 2
    (family,) = door.collect()
    counted = {
        sample.labels["reason"]: sample.value for sample in family.samples if sample.name.endswith("_total")
    }
    assert counted == {"busy": 1000, "connections": 1}


def test_connections_are_too_many_beyond_the_limit() -> None:
    door = Door(Limits(connections=5))
    assert not door.has_too_many(5)
    assert door.has_too_many(6)


def test_connections_have_room_as_long_as_their_requests_could_be_looked_at_soon() -> None:
    door = Door(Limits(unseen_requests=100))
    assert door.has_room(99)
    assert not door.has_room(100)
    let_in(door, A, 60)
    assert door.has_room(39)
    assert not door.has_room(40)


def test_a_path_with_few_requests_is_let_in_whatever_there_is() -> None:
    door = Door(Limits(unseen_requests=100))
    let_in(door, A, 1000)
    assert not door.has_few(A, 1)
    assert door.has_few(B, 16)
    assert not door.has_few(B, 17)


def test_requests_are_looked_at_in_their_order_some_in_each_turn_of_the_loop() -> None:
    door = Door(Limits())
    seen: list[tuple[int, int]] = []
    turn = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append((turn, scope["number"]))

    enter = door.around(app)

    async def nothing(*_: object) -> dict[str, object]:
        return {}

    async def main() -> None:
        nonlocal turn
        requests = []
        for number in range(200):
            door.came(A)
            requests.append(asyncio.ensure_future(enter({"raw_path": A, "number": number}, nothing, nothing)))
        await asyncio.sleep(0)
        requests[150].cancel()  # it stands in line
        while len(seen) < 199:
            turn += 1
            assert turn < 100
            await asyncio.sleep(0)

    asyncio.run(main())
    assert [number for _, number in seen] == [number for number in range(200) if number != 150]
    assert max(Counter(turn for turn, _ in seen).values()) <= 32
    assert let_in(door, A, 1) == 1
    assert door.has_room(Limits().unseen_requests - 2)
