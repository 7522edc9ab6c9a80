"""Many clients at once, from a process of their own: each connects, sends a request, and waits for the answer.

``python -m tests.serving.burst HOST PORT SOURCE COUNT EACH`` reads the request from its input and writes as JSON
what came of all: how many answers of each status, and why the others had none. SOURCE is an address of the
loopback interface, since one address has no more than 28,000 ports.
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


@dataclass
class Outcome:
    """What came of a burst."""

    statuses: dict[int, int]
    failures: dict[str, int]
    slowest_s: float


@dataclass
class _Client:
    """One of them: its connection, and what it has received."""

    connection: socket.socket
    left: int
    received: bytes = b""

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
        return int(head.split()[1]) if len(body) >= int(fields[b"content-length"]) else None


def _all(host: str, port: int, source: str, count: int, each: int, request: bytes) -> Outcome:
    """Connect all clients and see each to its end, with as little work for each as can be."""
    poll = select.epoll()
    clients: dict[int, _Client] = {}
    found: Counter[int | str] = Counter()
    started = time.monotonic()
    for _ in range(count):
        connection = socket.socket()
        connection.setblocking(False)
        connection.bind((source, 0))
        connection.connect_ex((host, port))
        clients[connection.fileno()] = _Client(connection, each)
        poll.register(connection.fileno(), select.EPOLLOUT)
    while clients and time.monotonic() - started < TIMEOUT_S:
        for number, events in poll.poll(1.0):
            client = clients[number]
            outcome: int | str | None = None
            if events & select.EPOLLOUT and not events & (select.EPOLLERR | select.EPOLLHUP):
                outcome = client.send(request)
                poll.modify(number, select.EPOLLIN)
            else:
                outcome = client.take()
            if outcome is None:
                continue
            found[outcome] += 1
            client.left -= 1
            if client.left and isinstance(outcome, int):
                client.received = b""
                client.send(request)  # should the connection have ended, that is what is read next
            else:
                poll.unregister(number)
                client.connection.close()
                del clients[number]
    found["no answer in time"] += len(clients)
    statuses = {status: n for status, n in found.items() if isinstance(status, int)}
    failures = {text: n for text, n in found.items() if isinstance(text, str) and n}
    return Outcome(statuses, failures, time.monotonic() - started)


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
            f"127.0.0.{index + 2}",
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
    host, port, source, count, each = sys.argv[1:]
    request = sys.stdin.buffer.read()
    outcome = _all(host, int(port), source, int(count), int(each), request)
    print(json.dumps(outcome.__dict__))


if __name__ == "__main__":
    main()
