"""Jobs that together need more memory than there is: each has its turn, and what they have is bounded and told."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from polymux.client import Lease
from polymux.core.errors import InvalidRequest
from tests.segment.server_process import ServerProcess, until

RUNS = 12


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path, "--device", "cpu") as made:
        yield made


class Training(threading.Thread):
    """Runs with a boundary in the middle, in which the job has activations."""

    in_the_middle: ClassVar[list[str]] = []

    def __init__(self, lease: Lease) -> None:
        super().__init__()
        self.lease = lease
        self.together = 0

    def run(self) -> None:
        for _ in range(RUNS):
            self.lease.step()
            self.in_the_middle.append(self.lease.job)
            for _ in range(5):
                time.sleep(0.006)
                self.lease.check()
                self.together += len(self.in_the_middle) > 1
            self.in_the_middle.remove(self.lease.job)
            self.lease.report(run_ns=30_000_000, boundary_ns=6_000_000)
        self.lease.close()


def test_two_jobs_that_exceed_the_memory_together_both_end_and_never_have_activations_at_once(
    server: ServerProcess,
) -> None:
    (device,) = server.status()["devices"]
    most = device["memory_nbytes"]
    assert most > 0
    with server.connect() as client:
        levels = ["step", "boundary"]
        jobs = [
            Training(client.lease(name, levels=levels, memory_nbytes=most // 10, peak_nbytes=most * 6 // 10))
            for name in ("first", "second")
        ]
        for job in jobs:
            job.start()
        until(lambda: server.status()["devices"][0]["jobs_memory"]["used_nbytes"] == most * 6 // 10, 60)
        rows = server.status()["jobs"]
        assert all(0 < row["resident_nbytes"] <= row["most_resident_nbytes"] for row in rows)
        for job in jobs:
            job.join(100)
            assert not job.is_alive()
    assert [job.together for job in jobs] == [0, 0]
    memory = server.status()["devices"][0]["jobs_memory"]
    assert memory == {"used_nbytes": 0, "most_nbytes": most * 6 // 10}


def test_what_cannot_fit_by_itself_is_refused_with_the_sizes(server: ServerProcess) -> None:
    most = server.status()["devices"][0]["memory_nbytes"]
    with (
        server.connect() as client,
        pytest.raises(InvalidRequest, match=f"{most + 1} bytes.*{most} for jobs"),
    ):
        client.lease("large", memory_nbytes=1, peak_nbytes=most + 1)
