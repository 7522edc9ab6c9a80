"""Thousands of clients in the same moment: each is answered or refused in words, and the front end goes on."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.serving import repository
from tests.serving.burst import burst
from tests.serving.front_end import FrontEnd, serving

COUNTS, EACH = (800, 800), 3


def request() -> bytes:
    tensor = {"name": "x", "datatype": "FP32", "shape": [4], "data": [1, 2, 3, 4]}
    body = json.dumps({"inputs": [tensor], "parameters": {"timeout": 60_000_000}}).encode()
    head = f"POST /v2/models/id/infer HTTP/1.1\r\nhost: test\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def resident_nbytes(front: FrontEnd) -> int:
    fields = Path(f"/proc/{front.process.pid}/status").read_text().split("VmRSS:")[1]
    return int(fields.split()[0]) * 1024


def ask_calm(url: str) -> int:
    """Ask another model, with as much time as a busy machine may need."""
    body = request().partition(b"\r\n\r\n")[2]
    try:
        with urllib.request.urlopen(f"http://{url}/v2/models/calm/infer", body, timeout=120) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


@pytest.mark.parametrize("options", [(), ("--policy", "spacetime")], ids=["direct", "spacetime"])
def test_each_of_thousands_of_clients_is_answered_or_refused(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    repository.add(tmp_path, "id", repository.identity("FP32"))
    repository.add(tmp_path, "calm", repository.identity("FP32"))
    with serving(tmp_path, *options) as front:
        front.wait_until_loaded()
        burst(front.url, request(), (100, 100))  # pools and caches fill
        before = resident_nbytes(front)
        calm: list[int] = []
        ended = threading.Event()

        def ask() -> None:
            while not ended.is_set():
                calm.append(ask_calm(front.url))

        other = threading.Thread(target=ask)
        other.start()
        outcome = burst(front.url, request(), COUNTS, EACH)
        ended.set()
        other.join()
        assert outcome.failures == {}
        assert set(outcome.statuses) <= {200, 503}
        assert sum(outcome.statuses.values()) == sum(COUNTS) * EACH
        assert outcome.statuses[200] > 0
        assert calm
        if not options:  # a policy may find that a deadline cannot be met
            assert set(calm) == {200}
        assert resident_nbytes(front) - before < 256 << 20
        assert front.get("/v2/models/id/infer", request().partition(b"\r\n\r\n")[2])[0] == 200
        assert "Traceback" not in front.log.read_text()
