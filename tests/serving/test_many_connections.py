"""Far more connections than there may be, at once: each is answered or refused in words, however few descriptors."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.serving import repository
from tests.serving.burst import burst
from tests.serving.front_end import FrontEnd, serving
from tests.serving.test_burst import request, resident_nbytes

COUNTS = (1000, 1000)


def descriptors(front: FrontEnd) -> int:
    return len(os.listdir(f"/proc/{front.process.pid}/fd"))


@pytest.mark.parametrize(
    ("options", "limit"),
    [(("--max-connections", "50"), None), ((), 400)],
    ids=["few connections", "few descriptors"],
)
def test_connections_far_beyond_the_limit_are_answered_or_refused(
    tmp_path: Path, options: tuple[str, ...], limit: int | None
) -> None:
    repository.add(tmp_path, "id", repository.identity("FP32"))
    with serving(tmp_path, *options, descriptors=limit) as front:
        front.wait_until_loaded()
        burst(front.url, request(), (40,))
        before = resident_nbytes(front)
        outcome = burst(front.url, request(), COUNTS)
        assert outcome.failures == {}
        assert set(outcome.statuses) <= {200, 503}
        assert sum(outcome.statuses.values()) == sum(COUNTS)
        assert outcome.statuses[200] > 0
        assert outcome.retry_after == outcome.statuses.get(503, 0)
        assert resident_nbytes(front) - before < 64 << 20
        deadline = time.monotonic() + 60
        while descriptors(front) > 200:  # those that were ended are closed
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert front.get("/v2/models/id/infer", request().partition(b"\r\n\r\n")[2])[0] == 200
        text = front.log.read_text()
        assert "Traceback" not in text
        assert "requests are refused: the front end has" in text
