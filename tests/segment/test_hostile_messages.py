"""Hostile messages on the control socket cost their sender an error or the connection, and nobody else anything."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from polymux.core.kernel_spec import BufferParam, KernelSpec
from tests.segment.raw_peer import DroppedError, RawPeer
from tests.segment.server_process import ServerProcess, until

MESSAGES = 20_000
OPERATIONS = [
    "hello",
    "queue_open",
    "queue_close",
    "kernel",
    "register",
    "unregister",
    "release",
    "export",
    "import",
    "import_info",
    "revoke",
    "unshare",
    "status",
    "devices",
    "kernels",
    "migrate",
    "nothing",
]
KEYS = [
    "id",
    "version",
    "layout",
    "name",
    "segment_nbytes",
    "offset",
    "capacity",
    "priority",
    "device",
    "index",
    "spec",
    "api",
    "isolate",
    "implementation",
    "path",
    "options",
    "sys_path",
    "cwd",
    "slot",
    "generation",
    "token",
    "queue",
]
SPEC = KernelSpec("k", (BufferParam("x"),), (BufferParam("y"),)).to_text()
VALUES = [
    "",
    "0",
    "1",
    "-1",
    "16",
    "64",
    "65535",
    "65536",
    str(2**31),
    str(2**46),
    str(2**63),
    str(2**64),
    "1e3",
    "x",
]
VALUES += [
    "cpu",
    "cpu:0",
    "cpu:1",
    "opencl",
    "onnx",
    "noop",
    "k",
    SPEC,
    "[]",
    "{}",
    "[[]]",
    "null",
    "%25",
    "%0A",
    "%",
]
VALUES += [
    "16781312",
    "gASVAA==",
    "/dev/null",
    "/dev/zero",
    "/",
    "0.0",
    "1.0",
    "ä\x00",
    "[" * 3000,
    "9" * 5000,
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    devices = ("--device", "cpu", "--device", "cpu:0,memory_nbytes=4MiB,streams=1")
    with ServerProcess(tmp_path_factory.mktemp("server"), *devices) as made:
        yield made


def works(server: ServerProcess) -> bool:
    """Let a proper client compute something."""
    with server.connect("proper") as client, client.queue(device="cpu:1") as queue:
        x, y = queue.array(np.arange(8.0)), queue.zeros(8, "f8")
        queue.submit("saxpy", [x, x], [y], a=2.0).wait(30)
        return bool((y.numpy() == 3 * np.arange(8.0)).all())


def message(rng: random.Random) -> bytes:
    """Make a message: mostly well-formed with values that may not fit, sometimes damaged, sometimes noise."""
    if rng.random() < 0.05:
        return rng.randbytes(rng.randint(1, 300))
    keys = rng.sample(KEYS, rng.randint(0, 8))
    values = (
        rng.choice(VALUES) if rng.random() < 0.9 else str(rng.getrandbits(rng.randint(1, 70))) for _ in keys
    )
    lines = [rng.choice(OPERATIONS), *(f"{key} {value}" for key, value in zip(keys, values, strict=True))]
    data = bytearray("\n".join(lines).encode())
    if rng.random() < 0.05:
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)


def drain(peer: RawPeer) -> None:
    """Read whatever the server has answered."""
    peer.socket.setblocking(False)
    try:
        while True:
            for descriptor in peer.receive()[2]:
                os.close(descriptor)
    except BlockingIOError:
        peer.socket.settimeout(30)


def test_random_messages_are_answered_or_end_the_connection(server: ServerProcess) -> None:
    rng = random.Random(20261202)
    assert works(server)
    before = (server.descriptors(), server.threads())
    sent = connections = 0
    while sent < MESSAGES:
        connections += 1
        with RawPeer(str(server.socket)) as peer:
            try:
                if rng.random() < 0.7:
                    peer.hello()
                for _ in range(200):
                    with open(os.devnull) as file:
                        peer.send(
                            message(rng), (file.fileno(),) * (rng.randint(1, 6) if rng.random() < 0.05 else 0)
                        )
                    sent += 1
                    if sent % 20 == 0:
                        peer.ask("status")
                    drain(peer)
            except DroppedError:
                pass
    assert connections > MESSAGES // 200
    assert works(server)
    until(lambda: not server.status()["applications"])
    until(lambda: (server.descriptors(), server.threads() - 4) <= before)  # pools of threads are kept
    assert "Traceback" not in server.log.read_text()


def test_a_client_that_never_reads_its_answers_is_dropped_and_nobody_waits_for_it(
    server: ServerProcess,
) -> None:
    with RawPeer(str(server.socket)) as peer:
        peer.hello()
        with pytest.raises((DroppedError, TimeoutError)):
            for number in range(100_000):
                peer.send(b"kernels\nid %d" % number)
                if number % 1000 == 0:
                    assert works(server)
        assert works(server)
    until(lambda: not server.status()["applications"])


def test_requests_that_take_for_ever_hold_up_nobody_else(server: ServerProcess, tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    os.mkfifo(model)  # whoever reads it waits
    with RawPeer(str(server.socket)) as peer:
        peer.hello()
        for number in range(50):
            peer.send(f"register\nid {number}\nname m{number}\napi onnx\npath {model}".encode())
        with server.connect("owner") as owner, server.connect("other") as other:
            buffer = owner.queue().zeros(50_000)
            assert other.import_buffer(buffer.export()).shape == (50_000,)
            assert other.request("kernels", {})[0]["json"]
        assert works(server)
    until(lambda: not server.status()["applications"])
    until(lambda: not server.children())


def test_a_message_of_millions_of_lines_is_refused_before_it_is_taken_apart(server: ServerProcess) -> None:
    before = peak_nbytes(server)
    descriptor = os.memfd_create("lines")
    nbytes = os.write(descriptor, b"a\n" * (16 << 20))
    with RawPeer(str(server.socket)) as peer:
        peer.send(f"carried {nbytes}".encode(), (descriptor,))
        head, fields, _ = peer.receive()
        assert head == "error"
        assert "lines" in fields["message"]
    os.close(descriptor)
    assert works(server)
    assert peak_nbytes(server) - before < 256 << 20


def peak_nbytes(server: ServerProcess) -> int:
    """Most resident memory that the server has had, in bytes."""
    fields = Path(f"/proc/{server.pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in fields if line.startswith("VmHWM:"))) * 1024
