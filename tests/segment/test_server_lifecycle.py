"""A server starts, is replaced, ends and dies; its clients and its command line notice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from polymux.core.errors import NoServer, ServerGone
from tests.segment.server_process import ServerProcess, until

KERNELS = Path(__file__).with_name("kernels_of_operator.py")


def polymux(*words: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command as a user would."""
    return subprocess.run(
        [sys.executable, "-m", "polymux.cli", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **(environment or {})},
    )


def test_a_second_server_on_the_same_socket_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, "--device", "cpu") as server:
        second = polymux("up", "--socket", str(server.socket), "--device", "cpu")
        assert second.returncode == 1
        assert "a server is already running" in second.stderr
        assert "Traceback" not in second.stderr
        server.connect().close()


def test_a_server_can_start_where_another_was_killed(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, "--device", "cpu")
    server.start()
    server.kill()
    assert server.socket.exists()
    with pytest.raises(NoServer):
        server.connect()
    server.start()
    server.connect().close()
    server.stop()


def test_waiting_clients_of_a_killed_server_get_an_error_and_can_connect_to_the_next(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, "--device", "cpu", "--kernels", str(KERNELS))
    server.start()
    client = server.connect()
    queue = client.queue()
    task = queue.submit("sleep", [queue.zeros(1, "f8")], [queue.zeros(1, "f8")], seconds=30.0)
    failures: list[BaseException] = []

    def wait() -> None:
        try:
            task.wait()
        except ServerGone as error:
            failures.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    server.kill()
    thread.join(10)
    assert len(failures) == 1
    server.start()
    with server.connect() as again:
        queue = again.queue()
        x, y = queue.array(np.ones(4)), queue.zeros(4, "f8")
        queue.submit("double", [x], [y]).wait(20)
        assert y.numpy().tolist() == [2.0] * 4
    server.stop()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    server = ServerProcess(tmp_path, "--device", "cpu")
    server.start()
    client = server.connect()
    server.signal(number)
    assert server.process is not None
    assert server.process.wait(20) == 0
    assert not server.socket.exists()
    until(lambda: client.server_gone)
    assert "Traceback" not in server.log.read_text()


def test_down_ends_the_server_and_returns_when_it_is_gone(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, "--device", "cpu")
    server.start()
    done = polymux("down", "--socket", str(server.socket))
    assert (done.returncode, done.stderr) == (0, "")
    assert f"(process {server.pid}) is down" in done.stdout
    assert server.process is not None
    assert server.process.wait(1) == 0
    again = polymux("down", "--socket", str(server.socket))
    assert again.returncode == 1
    assert "no server runs" in again.stderr


def test_the_end_waits_for_a_running_task_and_leaves_one_that_takes_too_long(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, "--device", "cpu", "--kernels", str(KERNELS))
    server.start()
    client = server.connect()
    queue = client.queue()
    queue.submit("sleep", [queue.zeros(1, "f8")], [queue.zeros(1, "f8")], seconds=60.0)
    until(lambda: server.status()["queues"][0]["pending"] == 1)
    server.signal(signal.SIGTERM)
    assert server.process is not None
    assert server.process.wait(40) == 0
    assert "left behind" in server.log.read_text()


def test_a_detached_server_is_ready_when_the_command_returns(tmp_path: Path) -> None:
    socket = str(tmp_path / "run" / "polymux.sock")
    up = polymux("up", "--detach", "--socket", socket, "--device", "cpu")
    try:
        assert up.returncode == 0, up.stderr
        assert "polymux runs at" in up.stdout
        status = polymux("status", "--socket", socket, "--json")
        assert json.loads(status.stdout)["server"]["socket"] == socket
        assert "cpu:0" in (tmp_path / "run" / "polymux.log").read_text()
    finally:
        assert polymux("down", "--socket", socket).returncode == 0


def test_a_detached_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    up = polymux("up", "--detach", "--socket", str(tmp_path / "s"), "--device", "cpu:0-999")
    assert up.returncode == 1
    assert "core" in up.stderr
    assert "Traceback" not in up.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--device", "quantum"), "known are cpu"),
        (("--device", "cpu:0-999"), "core"),
        (("--policy", "wishful"), "round_robin"),
        (("--kernels", "/nowhere/k.py"), "no such file"),
        (("--kernels", __file__), "defines no kernel"),
        (("--record", "/nowhere/r.jsonl"), "cannot be written"),
        (("--trace", "/nowhere/t.json"), "cannot be written"),
        (("--config", "/nowhere/c.toml"), "cannot be read"),
    ],
)
def test_a_server_that_is_asked_for_what_cannot_be_says_so_and_ends(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    up = polymux("up", "--socket", str(tmp_path / "s"), *words)
    assert up.returncode == 1
    assert said in up.stderr
    assert "Traceback" not in up.stderr
    assert not (tmp_path / "s").exists()


def test_a_server_follows_its_configuration_file_and_the_command_line_goes_first(tmp_path: Path) -> None:
    (tmp_path / "polymux.toml").write_text(
        f'socket = "here.sock"\npolicy = "least_loaded"\ndevices = ["cpu:0", "cpu:0,memory=host"]\n'
        f'kernels = ["{KERNELS}"]\n[limits]\nmax_clients = 2\nmax_segment_nbytes = "64 MiB"\n'
        f'segment_nbytes = "32 MiB"\n'
    )
    words = ["--config", str(tmp_path / "polymux.toml"), "--device", "cpu"]
    process = subprocess.Popen(
        [sys.executable, "-m", "polymux.cli", "up", *words], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        banner = process.stdout.readline()
        assert str(tmp_path / "here.sock") in banner
        assert "least_loaded" in banner
        server = ServerProcess(tmp_path)
        server.socket = tmp_path / "here.sock"
        until(server.socket.exists)
        with server.connect() as first, server.connect() as second:
            assert first.devices == ["cpu:0"]
            assert second.segment_nbytes == 64 << 20
            first.kernel_spec("double")
            with pytest.raises(Exception, match="limits.max_clients"):
                server.connect()
    finally:
        process.terminate()
        process.wait(20)
        if process.stdout is not None:
            process.stdout.close()


def test_commands_without_a_server_say_so_in_one_line(tmp_path: Path) -> None:
    for words in (["status"], ["top", "--once"], ["kernels"], ["migrate", "1.0", "cpu:0"], ["down"]):
        done = polymux(*words, "--socket", str(tmp_path / "s"))
        assert done.returncode == 1
        assert done.stderr.count("\n") == 1
        assert "polymux up" in done.stderr


def test_the_commands_show_what_runs(tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path, "--device", "cpu", "--device", "cpu:0", "--kernels", str(KERNELS)) as server,
        server.connect("heat") as client,
    ):
        queue = client.queue("stencils", device="cpu:1")
        x, y = queue.array(np.ones(1000)), queue.zeros(1000, "f8")
        queue.submit("double", [x], [y]).wait(20)
        at = ["--socket", str(server.socket)]
        status, top = polymux("status", *at).stdout, polymux("top", "--once", "--interval", "0.1", *at).stdout
        for text in (status, top):
            for word in ("heat", "stencils", "cpu:1/0", "pinned", "15.", "Streams", "policy round_robin"):
                assert word in text
        devices = polymux("devices", *at).stdout
        assert "cpu:1" in devices
        assert "cuda" in devices
        kernels = polymux("kernels", *at).stdout
        assert "saxpy" in kernels
        assert "(x, y) -> (y_out); a: f8" in kernels
        assert "Report a result of half" in polymux("kernels", "half", *at).stdout
        unknown = polymux("kernels", "nothing", *at)
        assert (unknown.returncode, unknown.stdout) == (1, "")
        for words in (["status"], ["devices"], ["kernels"]):
            json.loads(polymux(*words, "--json", *at).stdout)


def test_the_environment_names_the_socket(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, "--device", "cpu") as server:
        assert polymux("status", environment={"POLYMUX_SOCKET": str(server.socket)}).returncode == 0
        runtime = {"POLYMUX_SOCKET": "", "XDG_RUNTIME_DIR": str(tmp_path)}
        missing = polymux("status", environment=runtime)
        assert str(tmp_path / "polymux" / "polymux.sock") in missing.stderr
