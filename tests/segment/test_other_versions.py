"""What was built for another version is refused by name: kernel libraries, clients, servers."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import polymux
from polymux.client import Client
from polymux.core.errors import KernelFailed, PolymuxError, ProtocolMismatch
from polymux.core.implementation import NativeFunction
from polymux.core.kernel_spec import BufferParam, KernelSpec
from polymux.segment import PROTOCOL_VERSION
from tests.segment.raw_peer import RawPeer
from tests.segment.server_process import ServerProcess

KERNEL = "int k(polymux_kernel_call *c) { (void)c; return 0; }\n"
LIBRARIES = {
    "another ABI": (
        f"uint32_t polymux_kernel_library_abi(void) {{ return 99; }}\n{KERNEL}",
        "was built for kernel ABI 99, this Polymux has 1",
    ),
    "no ABI": (KERNEL, "does not export polymux_kernel_library_abi"),
    "no such symbol": (
        "uint32_t polymux_kernel_library_abi(void) { return POLYMUX_KERNEL_ABI; }\n",
        "has no symbol 'k'",
    ),
    "missing symbols": (
        f"extern int missing(void);\nint f(void) {{ return missing(); }}\n{KERNEL}",
        "library",
    ),
}
X_TO_Y = (BufferParam("x"),), (BufferParam("y"),)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server"), "--device", "cpu") as made:
        yield made


def build(folder: Path, source: str) -> Path:
    include = Path(polymux.__file__).parent / "include"
    (folder / "k.c").write_text(f'#include "polymux.h"\n{source}')
    command = ["gcc", "-shared", "-fPIC", f"-I{include}", "-o", folder / "libk.so", folder / "k.c"]
    subprocess.run(command, check=True)
    return folder / "libk.so"


@pytest.mark.parametrize("kind", LIBRARIES)
def test_a_kernel_library_that_does_not_fit_is_an_error_of_the_application_that_brings_it(
    server: ServerProcess, tmp_path: Path, kind: str
) -> None:
    source, said = LIBRARIES[kind]
    library = build(tmp_path, source)
    with server.connect() as client, client.queue() as queue:
        client.register(KernelSpec("k", *X_TO_Y), NativeFunction(str(library), "k"))
        x, y = queue.array(np.arange(4.0)), queue.zeros(4, "f8")
        for _ in range(2):
            with pytest.raises(KernelFailed, match=said):
                queue.submit("k", [x], [y]).wait(60)
        queue.submit("copy", [x], [y]).wait(60)
        assert y.numpy().tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", LIBRARIES)
def test_a_server_does_not_start_with_a_kernel_library_that_does_not_fit(tmp_path: Path, kind: str) -> None:
    source, said = LIBRARIES[kind]
    build(tmp_path, source)
    (tmp_path / "k.toml").write_text(
        '[[kernel]]\nname = "k"\ninputs = ["x"]\noutputs = ["y"]\n'
        '[kernel.native]\nlibrary = "libk.so"\nsymbol = "k"\n'
    )
    words = ["up", "--socket", str(tmp_path / "s"), "--device", "cpu", "--kernels", str(tmp_path / "k.toml")]
    done = subprocess.run(
        [sys.executable, "-m", "polymux.cli", *words], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert said in done.stderr
    assert "k.toml" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "fields",
    [
        {"version": 1},
        {"version": PROTOCOL_VERSION + 1},
        {"version": "x"},
        {"version": PROTOCOL_VERSION, "layout": 999},
    ],
)
def test_a_client_of_another_version_is_told_so_and_can_say_hello_properly(
    server: ServerProcess, fields: dict[str, object]
) -> None:
    with RawPeer(str(server.socket)) as peer:
        head, answer, _ = peer.ask("hello", **fields)
        assert (head, answer["code"]) == ("error", "ProtocolMismatch")
        assert "install the same Polymux on both sides" in answer["message"]
        peer.hello()


def no_memory(connection: socket.socket) -> None:
    connection.send(b"ok\nid 1\nsession 1\ndevices cpu:0\nsegment_nbytes 67108864")


def empty_memory(connection: socket.socket) -> None:
    segment = os.memfd_create("another")
    os.truncate(segment, 64 << 20)
    answer = b"ok\nid 1\nsession 1\ndevices cpu:0\nsegment_nbytes 67108864"
    socket.send_fds(connection, [answer], [segment])
    os.close(segment)


def short_memory(connection: socket.socket) -> None:
    segment = os.memfd_create("short")
    os.truncate(segment, 4096)
    answer = b"ok\nid 1\nsession 1\ndevices cpu:0\nsegment_nbytes 67108864"
    socket.send_fds(connection, [answer], [segment])
    os.close(segment)


def refusal(connection: socket.socket) -> None:
    connection.send(b"error\nid 1\ncode ProtocolMismatch\nmessage another version")


def damaged(data: bytes) -> object:
    return lambda connection: connection.send(data)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (no_memory, ProtocolMismatch),
        (empty_memory, ProtocolMismatch),
        (short_memory, OSError),
        (refusal, ProtocolMismatch),
        (damaged(b"ok\nid 1\nsegment_nbytes many"), ProtocolMismatch),
        (damaged(b"ok\nid 1\nsession %zz"), PolymuxError),
        (damaged(b"ok\nid"), PolymuxError),
        (damaged(b"\xff\xfe\nid 1"), PolymuxError),
        (damaged(b"carried 99999999999999999999"), PolymuxError),
        (damaged(b"carried x"), PolymuxError),
        (damaged(b"error\nid 1\ncode \nmessage "), PolymuxError),
        (damaged(b"HTTP/1.1 400 Bad Request"), PolymuxError),
        (lambda connection: None, PolymuxError),
    ],
)
def test_a_server_that_is_none_of_this_version_is_an_error_of_connect(
    tmp_path: Path, answer: object, error: type[Exception]
) -> None:
    path = str(tmp_path / "s")

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        connection.recv(65536)
        answer(connection)  # type: ignore[operator]
        connection.close()

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen()
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        with pytest.raises(error):
            Client(path)
        thread.join(30)
