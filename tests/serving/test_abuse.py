"""Hostile and broken clients by the hundred: the front end goes on and keeps nothing of them."""

from __future__ import annotations

import errno
import json
import random
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.serving import repository
from tests.serving.front_end import FrontEnd, serving

X = np.arange(20_000, dtype="<f4")
INPUTS = [{"name": "x", "shape": [X.size], "datatype": "FP32", "parameters": {"binary_data_size": X.nbytes}}]
TEXT = json.dumps({"inputs": INPUTS}).encode()
HEAD = (
    f"POST /v2/models/id/infer HTTP/1.1\r\nhost: a\r\ncontent-length: {len(TEXT) + X.nbytes}\r\n"
    f"inference-header-content-length: {len(TEXT)}\r\n\r\n"
).encode()
GOOD = HEAD + TEXT + X.tobytes()


@pytest.fixture
def front(tmp_path: Path) -> Iterator[FrontEnd]:
    repository.add(tmp_path, "id", repository.identity("FP32"))
    with serving(tmp_path) as started:
        started.wait_until_loaded()
        yield started


def used(front: FrontEnd) -> tuple[int, int]:
    """Return how many descriptors and threads the front end has."""
    folder = Path(f"/proc/{front.process.pid}")
    return len(list((folder / "fd").iterdir())), len(list((folder / "task").iterdir()))


def resident_nbytes(front: FrontEnd) -> int:
    fields = Path(f"/proc/{front.process.pid}/status").read_text().split("VmRSS:")[1]
    return int(fields.split()[0]) * 1024


def damaged(rng: random.Random) -> bytes:
    """Return a request that is cut off, has wrong bytes in it, or is none at all."""
    kind = rng.randrange(3)
    if kind == 0:
        return GOOD[: rng.randrange(len(GOOD))]
    if kind == 1:
        data = bytearray(GOOD)
        for _ in range(rng.randrange(1, 6)):
            data[rng.randrange(len(HEAD) + len(TEXT))] = rng.randrange(256)
        return bytes(data)
    return rng.randbytes(rng.randrange(1, 2000))


def connect(front: FrontEnd) -> socket.socket:
    host, _, port = front.url.partition(":")
    return socket.create_connection((host, int(port)), timeout=30)


def abuse(front: FrontEnd, rng: random.Random, clients: int) -> None:
    """Connect that many clients, each with a damaged request; some leave at once, the others read what comes."""
    for _ in range(clients):
        with connect(front) as connection:
            try:
                connection.sendall(damaged(rng))
                if rng.random() < 0.5:
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(65536):
                        pass
            except ConnectionError:
                pass
            except OSError as error:
                if error.errno != errno.ENOTCONN:  # what shutdown says when the server has hung up before
                    raise


def infer(front: FrontEnd) -> bool:
    with connect(front) as connection:
        connection.sendall(GOOD)
        received = b""
        while b'"data":[' not in received:
            piece = connection.recv(65536)
            assert piece
            received += piece
    return received.startswith(b"HTTP/1.1 200")


def test_damaged_requests_leave_no_descriptor_thread_or_memory_behind(front: FrontEnd) -> None:
    rng = random.Random(7)
    abuse(front, rng, 100)  # pools and caches fill
    assert infer(front)
    descriptors, threads = used(front)
    memory = resident_nbytes(front)
    abuse(front, rng, 400)
    assert infer(front)
    front.wait_for(lambda: used(front)[0] <= descriptors)
    assert used(front)[1] <= threads
    assert resident_nbytes(front) - memory < 32 << 20
    assert "Traceback" not in front.log.read_text()


def test_clients_that_never_finish_do_not_stop_the_others(front: FrontEnd) -> None:
    waiting = []
    for number in range(100):
        waiting.append(connect(front))
        waiting[-1].sendall(GOOD[: len(HEAD) + number * 500])
    assert infer(front)
    assert front.get("/v2/health/live")[0] == 200
    for connection in waiting:
        connection.close()
    assert infer(front)
