"""Two front ends that schedule on one server: the second is told who is there already, and waits for nothing."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import polymux
from polymux.core.errors import InvalidRequest
from tests.serving import repository
from tests.serving.front_end import POLYMUX, server, serving


@pytest.fixture
def models(tmp_path: Path) -> Path:
    root = tmp_path / "models"
    repository.add(root, "id", repository.identity("FP32"))
    return root


def second(models: Path, socket: Path, *options: str) -> subprocess.CompletedProcess[str]:
    words = [POLYMUX, "serve", str(models), "--port", "0", "--socket", str(socket), *options]
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(socket.parent)}
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, env=environment)


def test_a_second_scheduler_on_a_device_is_refused_with_the_name_of_the_first(
    models: Path, tmp_path: Path
) -> None:
    socket = tmp_path / "socket"
    with server(socket, "cpu,shares=nested"):
        with serving(models, "--policy", "unscheduled", "--socket", str(socket)) as front:
            front.wait_until_loaded()
            refused = second(models, socket, "--policy", "spacetime")
            assert refused.returncode == 1
            assert refused.stdout == ""
            assert f"'polymux serve' (process {front.process.pid}) schedules requests on cpu:0 already" in (
                refused.stderr
            )
            assert "give each a device of its own" in refused.stderr
            with serving(models, "--socket", str(socket)) as plain:  # without a policy nothing is promised
                plain.wait_until_loaded()
                assert plain.get("/v2/models/id/ready")[0] == 200
            assert front.get("/v2/models/id/ready")[0] == 200
        with serving(models, "--policy", "spacetime", "--socket", str(socket)) as front:
            front.wait_until_loaded()
            assert front.get("/v2/models/id/ready")[0] == 200


def test_two_schedulers_have_a_device_each(models: Path, tmp_path: Path) -> None:
    socket = tmp_path / "socket"
    with server(socket, "cpu:0", "cpu:1"):
        options = ("--policy", "unscheduled", "--socket", str(socket), "--device")
        with serving(models, *options, "cpu:0") as one, serving(models, *options, "cpu:1") as other:
            for front in (one, other):
                front.wait_until_loaded()
                assert front.get("/v2/models/id/ready")[0] == 200


def test_after_the_server_came_back_a_front_end_waits_until_the_device_is_free(
    models: Path, tmp_path: Path
) -> None:
    socket = tmp_path / "socket"
    with server(socket, "cpu,shares=nested"):
        starting = serving(models, "--policy", "unscheduled", "--socket", str(socket))
        front = starting.__enter__()
        front.wait_until_loaded()
    try:
        front.wait_for(lambda: front.get("/v2/models/id/ready")[0] == 503)
        with server(socket, "cpu,shares=nested"):
            with polymux.connect(str(socket), name="quicker", start=False) as client:
                try:
                    client.claim(["cpu:0"])
                except InvalidRequest:  # the front end was quicker: nothing to see here
                    return
                front.wait_for(lambda: "'quicker' (process" in front.log.read_text())
                assert front.get("/v2/models/id/ready")[0] == 503
            front.wait_for(lambda: front.get("/v2/models/id/ready")[0] == 200)
    finally:
        starting.__exit__(None, None, None)


def test_a_claim_is_whole_or_none_and_ends_with_its_client(tmp_path: Path) -> None:
    socket = tmp_path / "socket"
    with server(socket, "cpu:0", "cpu:1"):
        with polymux.connect(str(socket), name="one", start=False) as one:
            one.claim(["cpu:0"])
            one.claim(["cpu:0"])
            with polymux.connect(str(socket), name="two", start=False) as two:
                with pytest.raises(
                    InvalidRequest, match=r"'one' \(process \d+\) schedules requests on cpu:0"
                ):
                    two.claim(["cpu:1", "cpu:0"])
                with pytest.raises(
                    InvalidRequest, match="device 'cpu:7' does not exist; the server has cpu:0"
                ):
                    two.claim(["cpu:7"])
                one.claim(["cpu:1"])
                two.claim(["cpu:0"])
                claimed = {item["name"]: item["claimed"] for item in two.status()["applications"]}
                assert claimed == {"one": ["cpu:1"], "two": ["cpu:0"]}
        with polymux.connect(str(socket), name="three", start=False) as three:
            three.claim(["cpu:0", "cpu:1"])
