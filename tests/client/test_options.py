"""What an application says of itself and of its queues reaches the server; what cannot be is refused before."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import polymux
from polymux.client import Client
from polymux.core.errors import InvalidRequest
from polymux.segment import Segment


class Listener:
    """A server that agrees to everything and remembers what it was told."""

    def __init__(self) -> None:
        self._segment = Segment(32 << 20)
        self.ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.told: list[tuple[str, dict[str, str]]] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while data := self.ours.recv(65536):
            head, *lines = data.decode().split("\n")
            fields = {line.partition(" ")[0]: line.partition(" ")[2] for line in lines}
            self.told.append((head, fields))
            answer = {
                "hello": f"session 1\nsegment_nbytes {self._segment.nbytes}\ndevices cpu:0",
                "queue_open": "index 0\nqueue 1.0",
            }.get(head, "")
            packet = f"ok\nid {fields['id']}\n{answer}".strip().encode()
            socket.send_fds(self.ours, [packet], [self._segment.fd] if head == "hello" else [])

    def end(self) -> None:
        self._thread.join(10)
        self.ours.close()


@pytest.fixture
def listener() -> Iterator[Listener]:
    made = Listener()
    yield made
    made.end()


@pytest.mark.parametrize(
    ("weight", "percent"), [(1.0, "100"), (3, "300"), (0.01, "1"), (100, "10000"), (0.333, "33")]
)
def test_the_weight_of_an_application_is_said_in_per_cent(
    listener: Listener, weight: float, percent: str
) -> None:
    Client(fd=listener.theirs.detach(), weight=weight).close()
    [(head, fields)] = listener.told
    assert (head, fields["weight"]) == ("hello", percent)


def test_a_queue_says_how_much_data_its_tasks_use(listener: Listener) -> None:
    with Client(fd=listener.theirs.detach()) as client:
        client.queue(memory_nbytes=3 << 30).close()
        client.queue().close()
    opened = [fields["memory_nbytes"] for head, fields in listener.told if head == "queue_open"]
    assert opened == [str(3 << 30), "0"]


@pytest.mark.parametrize(
    "weight", [0, 0.009, -1.0, 100.1, 10**400, float("nan"), float("inf"), "1", None, True]
)
def test_a_weight_that_cannot_be_is_refused_with_the_range(weight: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"weight=.*from 0\.01 to 100"):
        polymux.connect(start=True, weight=weight)


@pytest.mark.parametrize("memory_nbytes", [-1, 1 << 62, 1.5, "1 GiB", None])
def test_an_amount_of_data_that_cannot_be_is_refused(client: Client, memory_nbytes: Any) -> None:
    with pytest.raises(InvalidRequest, match="memory_nbytes="):
        client.queue(memory_nbytes=memory_nbytes)
