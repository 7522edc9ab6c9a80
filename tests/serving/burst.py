"""Many clients at once, from a process of their own: each connects, sends a request, and waits for the answer.

``python -m tests.serving.burst HOST PORT SOURCES COUNT EACH`` reads the request from its input and writes as JSON
what came of all: how many answers of each status, and why the others had none. SOURCES is the beginning of addresses of
the loopback interface (``127.0.1``), since one address has no more than 28,000 ports, and half of them are found fast.
"""

from __future__ import annotations

import json
import select
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

TIMEOUT_S = 120.0
_PORTS = 10_000
"""Connections from one address."""
_IN_A_TURN = 100


@dataclass
class Outcome:
    """What came of a burst."""

    statuses: dict[int, int]
    failures: dict[str, int]
    slowest_s: float
    retry_after: int = 0
    """Answers that say when to come again."""


@dataclass
class _Client:
    """One of them: its connection, and what it has received."""

    connection: socket.socket
    left: int
    received: bytes = b""
    retry_after: int = 0

    def send(self, request: bytes) -> str | None:
        """Send the next request; why that cannot be."""
        try:
            self.connection.send(request)
        except OSError as error:
            return f"{type(error).__name__}: {error.strerror}"
        return None

    def take(self) -> int | str | None:
        """Read what is there: the status of a whole answer, why there is none, or None: it is still to come."""
        try:
            data = self.connection.recv(65536)
        except BlockingIOError:
            return None
        except OSError as error:
            return f"{type(error).__name__}: {error.strerror}"
        if not data:
            return "ended without an answer"
        self.received += data
        head, end, body = self.received.partition(b"\r\n\r\n")
        if not end:
            return None
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        if len(body) < int(fields[b"content-length"]):
            return None
        self.retry_after += b"retry-after" in fields
        return int(head.split()[1])


class _Clients:
    """All clients of this process."""

    def __init__(self, address: tuple[str, int], sources: str, count: int, each: int, request: bytes) -> None:
        self._address = address
        self._sources = sources
        self._count = count
        self._each = each
        self._request = request
        self._poll = select.epoll()
        self._open: dict[int, _Client] = {}
        self._found: Counter[int | str] = Counter()
        self._retry_after = 0

    def run(self) -> Outcome:
        """Connect all of them and see each to its end, with as little work for each as can be."""
        started = time.monotonic()
        for index in range(self._count):
            self._connect(f"{self._sources}.{1 + index // _PORTS}")
            if index % _IN_A_TURN == 0:  # who is connected does not wait until all are
                self._look(0.0)
        while self._open and time.monotonic() - started < TIMEOUT_S:
            self._look(1.0)
        self._found["no answer in time"] += len(self._open)
        statuses = {status: n for status, n in self._found.items() if isinstance(status, int)}
        failures = {text: n for text, n in self._found.items() if isinstance(text, str) and n}
        return Outcome(statuses, failures, time.monotonic() - started, self._retry_after)

    def _connect(self, source: str) -> None:
        connection = socket.socket()
        connection.setblocking(False)
        connection.bind((source, 0))
        connection.connect_ex(self._address)
        self._open[connection.fileno()] = _Client(connection, self._each)
        self._poll.register(connection.fileno(), select.EPOLLOUT)

    def _look(self, timeout_s: float) -> None:
        for number, events in self._poll.poll(timeout_s):
            client = self._open[number]
            outcome: int | str | None = None
            if events & select.EPOLLOUT and not events & (select.EPOLLERR | select.EPOLLHUP):
                outcome = client.send(self._request)
                self._poll.modify(number, select.EPOLLIN)
            else:
                outcome = client.take()
            if outcome is not None:
                self._ended(number, client, outcome)

    def _ended(self, number: int, client: _Client, outcome: int | str) -> None:
        self._found[outcome] += 1
        client.left -= 1
        if client.left and isinstance(outcome, int):
            client.received = b""
            client.send(self._request)  # should the connection have ended, that is what is read next
            return
        self._retry_after += client.retry_after
        self._poll.unregister(number)
        client.connection.close()
        del self._open[number]


def burst(url: str, request: bytes, counts: Sequence[int], each: int = 1) -> Outcome:
    """Have so many clients in each of as many processes as there are counts, each with so many requests in turn."""
    host, _, port = url.rpartition(":")
    started = []
    for index, count in enumerate(counts):
        words = [
            sys.executable,
            "-m",
            "tests.serving.burst",
            host,
            port,
            f"127.0.{index + 1}",
            str(count),
            str(each),
        ]
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdin is not None
        process.stdin.write(request)
        process.stdin.close()
        started.append(process)
    statuses: Counter[int] = Counter()
    failures: Counter[str] = Counter()
    slowest_s = 0.0
    retry_after = 0
    for process in started:
        assert process.stdout is not None
        found = json.loads(process.stdout.read())
        process.stdout.close()
        assert process.wait(30) == 0
        statuses.update({int(status): count for status, count in found["statuses"].items()})
        failures.update(found["failures"])
        slowest_s = max(slowest_s, found["slowest_s"])
        retry_after += found["retry_after"]
    return Outcome(dict(statuses), dict(failures), slowest_s, retry_after)


def main() -> None:
    """Send them."""
    host, port, sources, count, each = sys.argv[1:]
    request = sys.stdin.buffer.read()
    outcome = _Clients((host, int(port)), sources, int(count), int(each), request).run()
    print(json.dumps(outcome.__dict__))


if __name__ == "__main__":
    main()
