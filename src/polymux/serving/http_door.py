"""The door of the front end: what it cannot look at in time is refused before anything is done for it.

A request costs about a millisecond until it waits for a batch. When thousands come at once, the last ones, and everyone
who connects meanwhile, would wait for the event loop for seconds, whatever their deadlines are. So as many are let in
as can be looked at soon; the others are answered 503 at a small part of that cost. Those that were let in are looked at
some by some, so that the event loop sees to connections in between.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Literal, get_args

from prometheus_client import Counter
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from polymux.serving.http_message import Receive, Scope, Send
from polymux.serving.limits import Limits

__all__ = ["Door", "Reason"]

_log = logging.getLogger(__name__)

Reason = Literal["busy", "connections"]
"""Too many requests at once, or too many connections."""
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
"""Of ASGI."""

_PART = 0.75
"""Part of the places that requests for one path can take; the others are for those with few."""
_FEW = 16
"""Requests for a path that are let in even when all places are taken."""
_IN_A_TURN = 32
"""Requests that are looked at in one turn of the event loop."""
_SILENCE_S = 10.0
"""Between two lines in the log."""


class Door(Collector):
    """Counts requests that have come and that nobody has looked at.

    Parameters
    ----------
    limits : Limits
    clock : callable
        Monotonic time in s.

    Notes
    -----
    Of one event loop; `collect` is for any thread.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._waiting = 0
        self._by_path: dict[bytes, int] = {}
        self._begun = 0  # in this turn of the event loop
        self._line: deque[asyncio.Future[None]] = deque()
        self._silent_until = float("-inf")
        self._refused = Counter(
            "polymux_http_refused",
            "Requests answered 503 before they were looked at, because too many came at once.",
            ("reason",),
            registry=None,
        )
        for why in get_args(Reason):
            self._refused.labels(why)  # counted from 0 on

    def collect(self) -> Iterator[Metric]:
        """Yield the family; from any thread."""
        yield from self._refused.collect()

    def is_full(self, path: bytes) -> bool:
        """Whether a further request for a path would wait too long; to be followed by `came` or `refuse`."""
        own = self._by_path.get(path, 0)
        most = self._limits.unseen_requests
        return own >= _FEW and (self._waiting >= most or own >= _PART * most)

    def has_too_many(self, connections: int) -> bool:
        """Whether so many connections are more than there may be."""
        return connections > self._limits.connections

    def has_room(self, connections: int) -> bool:
        """Whether the requests of so many further connections, which are yet to come, could be looked at soon."""
        return self._waiting + connections < self._limits.unseen_requests

    def has_few(self, path: bytes, more: int) -> bool:
        """Whether a path has so few requests, with those yet to come, that they are let in whatever there is."""
        return self._by_path.get(path, 0) + more <= _FEW

    def came(self, path: bytes) -> None:
        """Note that a request waits to be looked at."""
        self._waiting += 1
        self._by_path[path] = self._by_path.get(path, 0) + 1

    def looked_at(self, path: bytes) -> None:
        """Note that one of them is being looked at."""
        self._waiting -= 1
        left = self._by_path[path] - 1
        if left:
            self._by_path[path] = left
        else:
            del self._by_path[path]

    def refuse(self, why: Reason) -> str:
        """Note that a request is refused, and say why."""
        self._refused.labels(why).inc()
        if why == "connections":
            reason = (
                f"the front end has {self._limits.connections} connections, its limit; connect again later"
            )
        else:
            reason = "more requests come at once than the front end can look at; send the request again later"
        now = self._clock()
        if now >= self._silent_until:
            self._silent_until = now + _SILENCE_S
            _log.warning("requests are refused: %s", reason)
        return reason

    def around(self, app: Application) -> Application:
        """Make the application that says when a request is looked at, and goes on with `app`."""

        async def enter(scope: Scope, receive: Receive, send: Send) -> None:
            try:
                if self._begun >= _IN_A_TURN:
                    await self._later()
                else:
                    self._begun += 1
                    if self._begun == 1:
                        asyncio.get_running_loop().call_soon(self._next_turn)
            finally:
                self.looked_at(scope["raw_path"])
            await app(scope, receive, send)

        return enter

    async def _later(self) -> None:
        """Wait for a turn with room, in the order of arrival."""
        turn = asyncio.get_running_loop().create_future()
        self._line.append(turn)
        await turn

    def _next_turn(self) -> None:
        """Begin a turn of the event loop: those come first who could not be looked at in earlier ones."""
        self._begun = 0
        while self._line and self._begun < _IN_A_TURN:
            turn = self._line.popleft()
            if not turn.done():  # the front end ends
                turn.set_result(None)
                self._begun += 1
        if self._begun:
            asyncio.get_running_loop().call_soon(self._next_turn)
