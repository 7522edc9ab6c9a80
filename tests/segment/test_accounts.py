"""Who took how much: the sums over the applications, over the devices and the devices' own counters agree at rest."""

from __future__ import annotations

import importlib.util
import json
import random
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polymux.client import Client, Queue
from tests.segment.server_process import ServerProcess, until

KERNELS = Path(__file__).with_name("kernels_of_operator.py")
APPLICATION = Path(__file__).with_name("application.py")
TOTALS = ("tasks", "failed", "busy_ns", "waiting_ns", "migrations")
COPIES = ("copied_in_nbytes", "copied_out_nbytes", "copied_between_nbytes")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    devices = ["cpu", "cpu:0,memory_nbytes=1MiB", "cpu:1,streams=2"]
    if importlib.util.find_spec("pyopencl") is not None:
        devices.append("opencl:0")
    words = [word for device in devices for word in ("--device", device)]
    with ServerProcess(tmp_path_factory.mktemp("server"), *words, "--kernels", str(KERNELS)) as made:
        yield made


def sums(state: dict[str, Any], by: str) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys((*TOTALS, *COPIES), 0))
    for account in state["accounts"]:
        for key in (*TOTALS, *COPIES):
            found[account[by]][key] += account[key]
    return found


def check(state: dict[str, Any]) -> None:
    """Compare both sums with each other and with what devices and streams count on their own."""
    by_application, by_device = sums(state, "application"), sums(state, "device")
    for key in (*TOTALS, *COPIES):
        assert sum(item[key] for item in by_application.values()) == sum(
            item[key] for item in by_device.values()
        )
    for device in state["devices"]:
        own, streams = by_device[device["id"]], device["streams"]
        assert own["tasks"] == sum(stream["tasks"] for stream in streams)
        for key in ("busy_ns", "waiting_ns"):
            measured = sum(stream[key] for stream in streams)
            assert own[key] == pytest.approx(measured, rel=0.01, abs=1000)
        assert own["copied_in_nbytes"] + own["copied_between_nbytes"] == device["copied_in_nbytes"]
        assert own["copied_out_nbytes"] <= device["copied_out_nbytes"]


def is_at_rest(server: ServerProcess) -> bool:
    state = server.status()
    tasks = sum(stream["tasks"] for device in state["devices"] for stream in device["streams"])
    counted = sum(account["tasks"] for account in state["accounts"] if account["device"] != "none")
    return tasks == counted and not any(queue["pending"] for queue in state["queues"])


class Work:
    """Submits tasks that end well or badly, moves its queue, opens and closes queues, all at random."""

    def __init__(self, client: Client, seed: int) -> None:
        self.client, self.rng = client, random.Random(seed)
        self.queues: list[Queue] = []
        self.tasks = self.failed = 0

    def step(self) -> None:
        rng = self.rng
        if len(self.queues) < 3 or rng.random() < 0.05:
            self.queues.append(self.client.queue())
        queue = rng.choice(self.queues)
        x = queue.array(np.ones(rng.choice((10, 5000)), "f4"))
        kernel = rng.choice(("double", "saxpy", "raise"))
        args: dict[str, Any] = {"a": 1.0} if kernel == "saxpy" else {}
        queue.submit(kernel, [x, x] if kernel == "saxpy" else [x], [x], **args).error(60)
        self.tasks += 1
        self.failed += kernel == "raise"
        if rng.random() < 0.3:
            self.client.request("migrate", {"queue": queue.id, "device": rng.choice(self.client.devices[:3])})
        if rng.random() < 0.05 and len(self.queues) > 1:
            self.queues.remove(queue)
            queue.synchronize(60)
            queue.close()
        x.close()


def test_the_sums_over_applications_and_devices_agree_whatever_happened(server: ServerProcess) -> None:
    killed = subprocess.Popen(
        [sys.executable, str(APPLICATION), str(server.socket), "migrating"], stdout=subprocess.PIPE
    )
    assert killed.stdout is not None
    killed.stdout.readline()
    done: dict[str, list[int]] = {}
    for round_ in range(2):
        clients = [server.connect(name) for name in ("heat[1]", "heat[2]", "train")]
        works = [Work(client, 10 * round_ + seed) for seed, client in enumerate(clients)]
        for _ in range(60):
            for work in works:
                work.step()
        for work, client in zip(works, clients, strict=True):
            counts = done.setdefault(client.name.partition("[")[0], [0, 0])
            counts[0] += work.tasks
            counts[1] += work.failed
            client.close()
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    killed.stdout.close()
    until(lambda: not server.status()["applications"] and is_at_rest(server))
    state = server.status()
    check(state)
    by_application = sums(state, "application")
    assert {"heat", "train", "migrating"} <= set(by_application)
    for name, (tasks, failed) in done.items():
        assert by_application[name]["tasks"] >= tasks, "and those that bring buffers home"
        assert by_application[name]["failed"] == failed
        assert by_application[name]["waiting_ns"] > 0
        assert by_application[name]["migrations"] > 10
    assert by_application["migrating"]["migrations"] > 5
    assert sum(item["copied_in_nbytes"] for item in by_application.values()) > 0


def test_numbers_only_grow_while_queues_run_move_and_end(server: ServerProcess) -> None:
    """A counter that falls would look to Prometheus like a server that was started anew."""
    process = subprocess.Popen(
        [sys.executable, str(APPLICATION), str(server.socket), "migrating"], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    before: dict[tuple[str, str], dict[str, int]] = {}
    try:
        with server.connect("status") as client:
            for _ in range(300):
                reply, _ = client.request("status")
                accounts = json.loads(reply["json"])["accounts"]
                now = {(item["application"], item["device"]): item for item in accounts}
                for cell, then in before.items():
                    assert all(now[cell][key] >= then[key] for key in (*TOTALS, *COPIES)), cell
                before = now
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    until(lambda: is_at_rest(server))
    check(server.status())
