"""The runtime inside an application: it comes with the connection and goes with it, however the application ends."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import polymux
from polymux.client import Client
from polymux.core.errors import InvalidRequest
from polymux.server.options import RuntimeOptions
from polymux.server.runtime import Runtime
from tests.segment.server_process import until

PROGRAM = """
import os, sys
import numpy as np
import polymux
client = polymux.connect(start=True)
queue = client.queue()
x = queue.array(np.ones(5))
queue.submit("copy", [x], [x]).wait(20)
{ending}
"""


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("", 0),
        ("client.close()", 0),
        ("raise RuntimeError('application error')", 1),
        ("sys.exit(7)", 7),
        ("queue.submit('copy', [x], [x])", 0),
        ("if os.fork() == 0: sys.exit(0)\nos.wait()", 0),
    ],
)
def test_an_application_ends_however_it_likes(ending: str, code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(ending=ending)], capture_output=True, timeout=60, check=False
    )
    assert done.returncode == code, done.stderr.decode()


def test_closing_the_client_ends_the_runtime() -> None:
    before = set(threading.enumerate())
    descriptors = len(os.listdir("/proc/self/fd"))
    for round_ in range(3):
        with polymux.connect(start=True) as client:
            queue = client.queue()
            x = queue.array(np.full(4, float(round_)))
            queue.submit("saxpy", [x, x], [x], a=1.0).wait(60)
            assert x.numpy().tolist() == [2.0 * round_] * 4
        del queue, x, client
    until(lambda: set(threading.enumerate()) <= before)
    until(lambda: len(os.listdir("/proc/self/fd")) <= descriptors + 1)


def test_several_clients_share_one_runtime_and_two_runtimes_do_not_meet() -> None:
    options = RuntimeOptions(devices=("cpu",))
    with Runtime(options) as one, Runtime(options) as two:
        clients = [
            Client(fd=runtime.connect_pair().detach(), segment_nbytes=64 << 20) for runtime in (one, one, two)
        ]
        assert [client.session for client in clients] == ["1", "2", "1"]
        buffer = clients[0].queue().zeros(20_000, "f8")
        token = buffer.export()
        assert clients[1].import_buffer(token).shape == (20_000,)
        with pytest.raises(InvalidRequest):
            clients[2].import_buffer(token)
        for client in clients:
            client.close()


def test_a_runtime_inside_an_application_cannot_be_told_to_go_down() -> None:
    with Runtime(RuntimeOptions(devices=("cpu",))) as runtime:
        with Client(fd=runtime.connect_pair().detach()) as client:
            with pytest.raises(InvalidRequest, match="ends with it"):
                client.request("down")
            client.queue().close()


def test_a_runtime_that_cannot_be_made_leaves_nothing_open() -> None:
    threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for options in (RuntimeOptions(devices=("quantum",)), RuntimeOptions(policy="wishful")):
        with pytest.raises(polymux.PolymuxError):
            Runtime(options)
    assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) == (threads, descriptors)


def test_closing_a_runtime_twice_or_before_it_started_is_fine(tmp_path: Path) -> None:
    for runtime in (
        Runtime(RuntimeOptions(devices=("cpu",))).start(),
        Runtime(RuntimeOptions(devices=("cpu",), trace=tmp_path / "trace.json")),
    ):
        assert runtime.close()
        assert runtime.close()
