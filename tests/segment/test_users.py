"""Clients of other users: refused unless the operator allows them, and their kernels run as themselves."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.segment.server_process import ServerProcess

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can act as other users")

NOBODY, SOMEBODY = 65534, 12345
PROGRAM = """
import os, sys
import numpy as np
from polymux.client import Client
from polymux.core.implementation import PythonFunction
from polymux.core.kernel_spec import BufferParam, KernelSpec

os.setgroups([])
os.setgid({uid})
os.setuid({uid})
try:
    client = Client(sys.argv[1], segment_nbytes=64 << 20)
    {body}
except Exception as error:
    print(type(error).__name__, error)
"""
WHO = """
    def who(x, y):
        y[0], y[1], y[2] = os.getuid(), os.getgid(), len(os.getgroups())
    client.register(KernelSpec("who", (BufferParam("x"),), (BufferParam("y"),)), PythonFunction(who))
    queue = client.queue()
    x, y = queue.zeros(3, "f8"), queue.zeros(3, "f8")
    queue.submit("who", [x], [y]).wait(30)
    print(*y.numpy().astype(int))
"""


def _is_for_everybody(program: str) -> bool:
    """Whether other users can reach and run a program."""
    real = Path(program).resolve()
    return all(folder.stat().st_mode & 0o001 for folder in (real, *real.parents))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("server")
    (folder / "c.toml").write_text(f"allow_uids = [{NOBODY}]\n")
    for open_folder in (folder, *folder.parents):
        if str(open_folder).startswith("/tmp/"):
            open_folder.chmod(0o755)
    with ServerProcess(folder, "--device", "cpu", "--config", str(folder / "c.toml")) as made:
        yield made


def as_user(server: ServerProcess, uid: int, body: str) -> str:
    program = PROGRAM.format(uid=uid, body=body.strip())
    done = subprocess.run(
        [sys.executable, "-c", program, str(server.socket)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.strip()


def test_a_user_who_is_not_allowed_is_refused_with_the_remedy(server: ServerProcess) -> None:
    said = as_user(server, SOMEBODY, "print('in')")
    assert said.startswith("PermissionDenied")
    assert f"allow_uids = [{SOMEBODY}]" in said


def test_a_user_who_is_not_allowed_sees_nothing_without_a_session_either(server: ServerProcess) -> None:
    program = f"""
import os, socket, sys
os.setgid({SOMEBODY}); os.setuid({SOMEBODY})
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.connect(sys.argv[1])
for operation in ("status", "devices", "kernels", "migrate", "down", "register", "export"):
    s.send(f"{{operation}}\\nid 1\\nqueue 1.0\\ndevice cpu:0".encode())
    print(s.recv(70000).decode().split("\\n")[0])
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(server.socket)], capture_output=True, text=True, check=True
    )
    assert set(done.stdout.split()) == {"error"}


@pytest.mark.skipif(not _is_for_everybody(sys.executable), reason="this Python is not for other users")
def test_a_kernel_of_an_allowed_user_runs_as_that_user(server: ServerProcess) -> None:
    assert as_user(server, NOBODY, WHO) == f"{NOBODY} {NOBODY} 0"


def test_an_allowed_user_cannot_run_kernels_inside_the_server(server: ServerProcess) -> None:
    body = """
    client.register(KernelSpec("k", (), ()), PythonFunction(print), isolate=False)
"""
    assert as_user(server, NOBODY, body).startswith("PermissionDenied")


def test_an_allowed_user_cannot_stop_the_server_or_move_queues_of_others(server: ServerProcess) -> None:
    with server.connect("root") as client:
        queue = client.queue()
        down = as_user(server, NOBODY, "client.request('down')")
        assert down.startswith("PermissionDenied")
        fields = {"queue": queue.id, "device": "cpu:0"}
        assert as_user(server, NOBODY, f"client.request('migrate', {fields})").startswith("PermissionDenied")
        own = "q = client.queue(); print(client.request('migrate', {'queue': q.id, 'device': 'cpu:0'})[0]['message'])"
        assert "cpu:0" in as_user(server, NOBODY, own)


def test_a_model_is_read_with_the_rights_of_the_application(server: ServerProcess, tmp_path: Path) -> None:
    secret = tmp_path / "secret.onnx"
    secret.write_bytes(b"root's own")
    secret.chmod(0o600)
    body = f"""
    from polymux.core.implementation import OnnxModel
    client.register(None, OnnxModel("{secret}"), name="m")
"""
    said = as_user(server, NOBODY, body)
    assert said.startswith("InvalidRequest")
    assert "root's own" not in said


def test_the_socket_is_open_to_others_only_when_some_are_allowed(
    server: ServerProcess, tmp_path: Path
) -> None:
    assert os.stat(server.socket).st_mode & 0o777 == 0o666
    with ServerProcess(tmp_path, "--device", "cpu") as closed:
        assert not os.stat(closed.socket).st_mode & 0o022
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as mine:
            mine.connect(str(closed.socket))
