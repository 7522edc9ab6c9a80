"""Many clients at once, from a process of their own: each connects, sends one request, and waits for the answer.

``python -m tests.serving.burst HOST PORT SOURCE COUNT`` reads the request from its input and writes as JSON what came
of all: how many answers of each status, and why the others had none. SOURCE is an address of the loopback interface,
since one address has no more than 28,000 ports.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import uvloop

TIMEOUT_S = 120.0


@dataclass
class Outcome:
    """What came of a burst."""

    statuses: dict[int, int]
    failures: dict[str, int]
    slowest_s: float


class _Client(asyncio.Protocol):
    def __init__(self, request: bytes, done: asyncio.Future[int]) -> None:
        self._request = request
        self._done = done
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        transport.write(self._request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        if not end:
            return
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        if len(body) >= int(fields[b"content-length"]) and not self._done.done():
            self._done.set_result(int(head.split()[1]))
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            self._done.set_exception(ConnectionError(f"ended without an answer: {exc}"))


async def _one(host: str, port: int, source: str, request: bytes) -> int | str:
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await loop.create_connection(lambda: _Client(request, done), host, port, local_addr=(source, 0))
            return await done
    except (OSError, TimeoutError) as error:
        done.cancel()
        return f"{type(error).__name__}: {error}"


async def _all(host: str, port: int, source: str, count: int, request: bytes) -> Outcome:
    started = time.monotonic()
    found = await asyncio.gather(*(_one(host, port, source, request) for _ in range(count)))
    slowest_s = time.monotonic() - started
    statuses = Counter(status for status in found if isinstance(status, int))
    return Outcome(dict(statuses), dict(Counter(text for text in found if isinstance(text, str))), slowest_s)


def burst(url: str, request: bytes, counts: Sequence[int]) -> Outcome:
    """Send a request so many times from each of as many processes as there are counts, all at once."""
    host, _, port = url.rpartition(":")
    started = []
    for index, count in enumerate(counts):
        words = [sys.executable, "-m", "tests.serving.burst", host, port, f"127.0.0.{index + 2}", str(count)]
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdin is not None
        process.stdin.write(request)
        process.stdin.close()
        started.append(process)
    statuses: Counter[int] = Counter()
    failures: Counter[str] = Counter()
    slowest_s = 0.0
    for process in started:
        assert process.stdout is not None
        found = json.loads(process.stdout.read())
        process.stdout.close()
        assert process.wait(30) == 0
        statuses.update({int(status): count for status, count in found["statuses"].items()})
        failures.update(found["failures"])
        slowest_s = max(slowest_s, found["slowest_s"])
    return Outcome(dict(statuses), dict(failures), slowest_s)


def main() -> None:
    """Send them."""
    host, port, source, count = sys.argv[1:]
    request = sys.stdin.buffer.read()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        outcome = runner.run(_all(host, int(port), source, int(count), request))
    print(json.dumps(outcome.__dict__))


if __name__ == "__main__":
    main()
