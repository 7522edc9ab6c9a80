"""A real server under load, moved about and recorded: all results are right, and the replay decides the same."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from polymux.client import Client
from polymux.core.errors import InvalidRequest
from tests.segment.server_process import ServerProcess, until

KERNELS = Path(__file__).parent.parent / "segment" / "kernels_of_operator.py"
MIGRATIONS = 1000
CLIENTS = 3
QUEUES = 4
LENGTH = 5000


class Application:
    """Queues of random tasks on a buffer each, and what NumPy says that they must hold."""

    def __init__(self, client: Client, seed: int, pinned: str) -> None:
        self._rng = random.Random(seed)
        self.queues = [client.queue(f"app{seed}.{at}", capacity=64) for at in range(QUEUES)]
        self.pinned = client.queue(f"pinned{seed}", device=pinned)
        self._buffers = [queue.array(np.full(LENGTH, 1.0)) for queue in self.queues]
        self._expected = [np.full(LENGTH, 1.0) for _ in self.queues]
        self._shared = self.pinned.array(np.full(LENGTH, 0.5))  # all queues read it, wherever they are
        self._own, self.expected_own = self.pinned.array(np.zeros(LENGTH)), np.zeros(LENGTH)
        self.wrong: list[str] = []
        self.tasks = 0

    def work(self) -> None:
        """Submit a few tasks to every queue; look at some of the results, and carry one to the next queue."""
        for at, queue in enumerate(self.queues):
            buffer = self._buffers[at]
            for _ in range(self._rng.randint(1, 6)):
                self._submit(at)
            self.pinned.submit("saxpy", [self._own, self._own], [self._own], a=-0.5)
            self.expected_own = self.expected_own * -0.5 + self.expected_own
            if self._rng.random() < 0.3:
                self._compare(f"{queue.name}", buffer.numpy(60), self._expected[at])
            elif self._rng.random() < 0.3:  # the next queue waits for this one's result
                queue.synchronize(60)
                after = (at + 1) % QUEUES
                self.queues[after].submit(
                    "saxpy", [buffer, self._buffers[after]], [self._buffers[after]], a=0.25
                )
                self._expected[after] = 0.25 * self._expected[at] + self._expected[after]
                self.queues[after].synchronize(60)
                self.tasks += 1

    def finish(self) -> None:
        """Wait for everything and compare it."""
        for queue, buffer, expected in zip(self.queues, self._buffers, self._expected, strict=True):
            queue.synchronize(60)
            self._compare(queue.name, buffer.numpy(60), expected)
        self.pinned.synchronize(60)
        self._compare("pinned", self._own.numpy(60), self.expected_own)

    def _submit(self, at: int) -> None:
        buffer, expected = self._buffers[at], self._expected[at]
        kind = self._rng.randrange(4)
        if kind == 0:
            self.queues[at].submit("saxpy", [buffer, buffer], [buffer], a=-0.75)
            self._expected[at] = expected * -0.75 + expected
        elif kind == 1:
            value = float(self._rng.randint(0, 100))
            self.queues[at].submit("fill", [], [buffer], value=value)
            self._expected[at] = np.full(LENGTH, value)
        elif kind == 2:
            self.queues[at].submit("saxpy", [self._shared, buffer], [buffer], a=4.0)
            self._expected[at] = expected + 2.0
        else:  # only on the processor's devices: a queue that is elsewhere goes to a helper and comes home
            self.queues[at].submit("add_ones", [buffer], [buffer])
            self._expected[at] = expected + 1
        self.tasks += 1

    def _compare(self, name: str, found: np.ndarray, expected: np.ndarray) -> None:
        if not np.array_equal(found, expected):
            self.wrong.append(f"{name}: {found[:3]} where {expected[:3]} was right")


@pytest.mark.parametrize("policy", ["round_robin", "least_loaded"])
def test_a_thousand_random_migrations_under_load_lose_nothing_and_replay_to_the_same_decisions(
    tmp_path: Path, policy: str
) -> None:
    pytest.importorskip("pyopencl")
    record = tmp_path / "run.jsonl"
    devices = [
        "cpu",
        "cpu:0,memory_nbytes=140KiB,streams=1",
        "cpu:1,memory_nbytes=1MiB,streams=1",
        "opencl:0,memory_nbytes=160KiB",
    ]
    words = [word for device in devices for word in ("--device", device)]
    words += ["--kernels", str(KERNELS), "--policy", policy, "--record", str(record)]
    with ServerProcess(tmp_path, *words) as server:
        moved = run(server, random.Random(policy), ["cpu:0", "cpu:1", "cpu:2", "opencl:0"])
        assert moved > MIGRATIONS // 2
        until(lambda: not bound(server))  # the last lease of a task ends when its stream lets go of the queue
        assert held(server) == 0
        assert "Traceback" not in server.log.read_text()
    lines = record.read_text().splitlines()
    assert len(lines) > MIGRATIONS
    events = {json.loads(line)["event"]["type"] for line in lines[1:]}
    assert {
        "MigrateRequested",
        "QueuePrepared",
        "QueueReleased",
        "KernelMissing",
        "HomePossible",
        "QueueClosed",
    } <= events
    replayed = subprocess.run(
        [sys.executable, "-m", "polymux.cli", "replay", str(record)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    assert f"policy {policy}: {len(lines) - 1} steps, all decided as recorded" in replayed.stdout


def held(server: ServerProcess) -> int:
    """Bytes that the devices' memories hold."""
    return sum(device["used_nbytes"] + device["kept_nbytes"] for device in server.status()["devices"])


def bound(server: ServerProcess) -> list[str]:
    """Queues that streams have."""
    streams = [stream for device in server.status()["devices"] for stream in device["streams"]]
    return [queue for stream in streams for queue in stream["queues"]]


def run(server: ServerProcess, rng: random.Random, devices: Sequence[str]) -> int:
    """Let applications work while an operator moves their queues; how many moves were made."""
    stop = threading.Event()
    failures: list[BaseException] = []
    applications: list[Application] = []

    def use(seed: int) -> None:
        try:
            with server.connect(f"app{seed}") as client:
                application = Application(client, seed, devices[seed % len(devices)])
                applications.append(application)
                while not stop.is_set():
                    application.work()
                application.finish()
        except BaseException as error:
            failures.append(error)

    users = [threading.Thread(target=use, args=(seed,)) for seed in range(CLIENTS)]
    for user in users:
        user.start()
    until(lambda: len(applications) == len(users) or bool(failures), 60)
    moved = 0
    with server.connect("operator") as operator:
        queues = [queue.id for application in applications for queue in application.queues]
        for _ in range(MIGRATIONS):
            if failures:
                break
            moved += migrate(operator, rng.choice(queues), rng.choice(devices))
    stop.set()
    for user in users:
        user.join(120)
        assert not user.is_alive()
    assert failures == []
    for application in applications:
        assert application.wrong == []
        assert application.tasks > 100
    until(lambda: not server.status()["applications"])
    return moved


def migrate(operator: Client, queue: str, device: str) -> bool:
    """Move a queue; False when it is just being moved because of a missing kernel."""
    try:
        operator.request("migrate", {"queue": queue, "device": device})
    except InvalidRequest:
        return False
    return True
