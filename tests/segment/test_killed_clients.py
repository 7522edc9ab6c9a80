"""Clients killed with SIGKILL in every state: nothing of them stays, and nobody else notices."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from polymux.core.errors import InvalidRequest
from tests.segment.application import STATES
from tests.segment.server_process import ServerProcess, until

KERNELS = Path(__file__).with_name("kernels_of_operator.py")
APPLICATION = Path(__file__).with_name("application.py")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    devices = ("--device", "cpu", "--device", "cpu:0,memory_nbytes=1MiB,streams=1")
    with ServerProcess(tmp_path_factory.mktemp("server"), *devices, "--kernels", str(KERNELS)) as made:
        yield made


def start(server: ServerProcess, state: str) -> tuple[subprocess.Popen[str], str]:
    """Start an application and wait until it is in its state; returns it and what it says."""
    process = subprocess.Popen(
        [sys.executable, str(APPLICATION), str(server.socket), state], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    said = process.stdout.readline().split()
    assert said[0] == "ready"
    return process, said[-1]


def kill(*processes: subprocess.Popen[str]) -> None:
    for process in processes:
        process.kill()
    for process in processes:
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def works(server: ServerProcess) -> bool:
    """Let another application compute something on every device."""
    with server.connect("bystander") as client:
        for device in client.devices:
            queue = client.queue(device=device)
            x, y = queue.array(np.arange(8.0)), queue.zeros(8, "f8")
            queue.submit("double", [x], [y]).wait(20)
            assert (y.numpy() == 2 * np.arange(8.0)).all()
    return True


@pytest.mark.parametrize("state", STATES)
def test_a_client_killed_in_any_state_leaves_nothing_and_hurts_nobody(
    server: ServerProcess, state: str
) -> None:
    process, _ = start(server, state)
    assert server.status()["applications"]
    kill(process)
    until(lambda: not server.status()["applications"])
    until(lambda: not server.children())
    until(lambda: all(device["used_nbytes"] == 0 for device in server.status()["devices"]))
    assert works(server)


def test_tasks_of_a_killed_client_are_dropped_and_not_run(server: ServerProcess) -> None:
    def done() -> int:
        return sum(stream["tasks"] for device in server.status()["devices"] for stream in device["streams"])

    before = done()
    process, _ = start(server, "waiting")
    kill(process)
    until(lambda: not server.status()["applications"])
    assert works(server)
    assert done() - before < 100  # of the 200 that were in its ring


def test_the_grants_of_a_killed_client_are_gone(server: ServerProcess) -> None:
    process, token = start(server, "exporting")
    with server.connect() as client:
        client.import_buffer(token).close()
        kill(process)
        until(lambda: server.status()["server"]["grants"] == 0)
        with pytest.raises(InvalidRequest, match="no grant"):
            client.import_buffer(token)


def test_an_importer_keeps_the_content_when_the_exporter_is_killed(server: ServerProcess) -> None:
    process, token = start(server, "exporting")
    with server.connect() as client:
        buffer = client.import_buffer(token)
        buffer.numpy()[:] = 3
        kill(process)
        until(lambda: server.status()["server"]["grants"] == 0)
        queue = client.queue(device="cpu:1")
        queue.submit("double", [buffer], [buffer]).wait(20)
        assert (buffer.numpy() == 6).all()


def test_fifty_clients_killed_in_all_states_leave_descriptors_threads_and_memory_as_they_were(
    server: ServerProcess,
) -> None:
    def settled() -> bool:
        state = server.status()
        return not (state["applications"] or state["queues"] or server.children())

    def round_of(count: int) -> None:
        states = list(STATES)
        for at in range(0, count, 5):
            some = [start(server, states[(at + i) % len(states)])[0] for i in range(5)]
            kill(*some)
        until(settled, 20.0)

    round_of(10)  # what is made once and kept: threads of pools, prepared kernels
    assert works(server)
    until(settled, 20.0)
    before = (server.descriptors(), server.threads())
    rss_nbytes = server.rss_nbytes()
    round_of(50)
    assert works(server)
    until(lambda: (server.descriptors(), server.threads()) <= before, 10.0)
    assert server.rss_nbytes() - rss_nbytes < 8 << 20
    until(lambda: "polymux-" not in Path(f"/proc/{server.pid}/maps").read_text())  # segments and grants


def test_a_client_stopped_in_the_middle_does_not_hold_up_the_others(server: ServerProcess) -> None:
    process, _ = start(server, "submitting")
    os.kill(process.pid, signal.SIGSTOP)
    assert works(server)
    kill(process)
    until(lambda: not server.status()["applications"])
