"""A front end that has joined a server: the server dies, comes back, and the models serve again."""

from __future__ import annotations

import json
import subprocess
import tempfile
import urllib.request
from pathlib import Path

from tests.serving import repository
from tests.serving.front_end import POLYMUX, FrontEnd, end, server, serving

BODY = json.dumps({"inputs": [{"name": "x", "shape": [2], "datatype": "FP32", "data": [1, 2]}]}).encode()
INFER = "/v2/models/id/infer"


def test_the_front_end_survives_the_servers_death_and_serves_again_when_it_is_back(tmp_path: Path) -> None:
    repository.add(tmp_path, "id", repository.identity("FP32"))
    with tempfile.TemporaryDirectory(prefix="polymux-test-") as folder:
        socket = Path(folder) / "s"
        with server(socket) as first, serving(tmp_path, "--socket", str(socket)) as front:
            front.wait_until_loaded()
            assert front.get(INFER, BODY)[0] == 200
            assert 'polymux_tasks_total{application="polymux serve",device="cpu:0"}' in metrics(front)
            first.kill()
            first.wait()
            front.wait_for(lambda: front.get("/v2/health/ready")[0] == 400, 10)
            status, answer = front.get(INFER, BODY)
            assert status == 503
            assert "gone" in answer["error"]
            assert front.get("/v2/health/live")[0] == 200
            told = metrics(front).splitlines()
            assert "polymux_up 0.0" in told
            assert not [line for line in told if line.startswith("polymux_tasks_total{")]
            with server(socket):
                front.wait_for(lambda: front.get("/v2/health/ready")[0] == 200, 30)
                status, answer = front.get(INFER, BODY)
                assert (status, answer["outputs"][0]["data"]) == (200, [1.0, 2.0])
                assert "polymux_up 1.0" in metrics(front)
                assert end(front.process) == 0


def metrics(front: FrontEnd) -> str:
    with urllib.request.urlopen(f"http://{front.url}/metrics", timeout=30) as answer:
        return str(answer.read().decode())


def refused(*arguments: str) -> str:
    """Run a front end that must not start, and return what it says."""
    ran = subprocess.run(
        [POLYMUX, "serve", *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 1
    assert "Traceback" not in ran.stderr
    return ran.stderr


def test_a_server_that_is_not_there_is_an_error_that_names_its_socket(tmp_path: Path) -> None:
    assert str(tmp_path / "none") in refused(str(tmp_path), "--socket", str(tmp_path / "none"))


def test_a_repository_that_is_not_there_is_an_error_that_names_it(tmp_path: Path) -> None:
    assert str(tmp_path / "nothing") in refused(str(tmp_path / "nothing"))


def test_a_port_that_is_taken_is_an_error_that_names_it(tmp_path: Path) -> None:
    with serving(tmp_path) as front:
        port = front.url.rpartition(":")[2]
        assert port in refused(str(tmp_path), "--port", port)
