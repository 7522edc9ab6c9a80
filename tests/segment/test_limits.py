"""Limits are the server's: a client that goes around its library meets them all the same, and the others have room."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from polymux.client import Client
from polymux.core.errors import InvalidRequest, SegmentFull
from polymux.core.implementation import PythonFunction
from polymux.core.kernel_spec import BufferParam, KernelSpec
from polymux.core.status import TaskStatus
from polymux.segment import PROTOCOL_VERSION, queue_nbytes
from tests.segment.raw_peer import DroppedError, RawPeer
from tests.segment.server_process import ServerProcess, until

KERNELS = Path(__file__).with_name("kernels_of_operator.py")
MIB = 1 << 20
CONFIG = """
devices = ["cpu", "cpu:0,memory_nbytes=2MiB"]
[limits]
segment_nbytes = "32 MiB"
max_segment_nbytes = "64 MiB"
max_clients = 16
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("server")
    (folder / "polymux.toml").write_text(CONFIG)
    with ServerProcess(folder, "--config", str(folder / "polymux.toml"), "--kernels", str(KERNELS)) as made:
        yield made


@pytest.fixture
def peer(server: ServerProcess) -> Iterator[RawPeer]:
    with RawPeer(str(server.socket)) as made:
        made.hello()
        yield made
    until(lambda: not server.status()["applications"])


def refused(peer: RawPeer, operation: str, **fields: object) -> str:
    """Ask for what must be refused; the server's message."""
    head, answer, _ = peer.ask(operation, **fields)
    assert head == "error", answer
    return answer["message"]


@pytest.mark.parametrize("asked", [65 * MIB, 1 << 40, (1 << 46)])
def test_a_segment_is_never_larger_than_the_server_allows(server: ServerProcess, asked: int) -> None:
    with RawPeer(str(server.socket)) as peer:
        assert int(peer.hello(asked)["segment_nbytes"]) == 64 * MIB
        with pytest.raises(PermissionError):
            os.ftruncate(memory_of(server), asked)
    with Client(str(server.socket), segment_nbytes=asked) as client, pytest.raises(SegmentFull):
        client.queue().empty(64 * MIB, "u1")


def memory_of(server: ServerProcess) -> int:
    """Open the segment of the only client anew, as a client could."""

    def segments() -> list[Path]:
        found = []
        for name in Path(f"/proc/{server.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                if "polymux-segment" in os.readlink(name):
                    found.append(name)
        return found

    until(lambda: len(segments()) == 1)  # that of a client that is just going is not gone at once
    return os.open(segments()[0], os.O_RDWR)


def test_a_session_cannot_be_begun_twice_for_another_segment(peer: RawPeer) -> None:
    assert "already" in refused(
        peer, "hello", version=PROTOCOL_VERSION, name="again", segment_nbytes=32 * MIB
    )


def test_the_memory_of_a_device_is_not_exceeded_by_descriptors_written_by_hand(
    server: ServerProcess, peer: RawPeer
) -> None:
    """A thousand slots name the same MiB of the segment: each is a buffer of its own on the device."""
    peer.open_queue(device="cpu:1")
    copy = peer.kernel_id("copy")
    for slot in range(1000):
        peer.buffer(slot, peer.free, MIB // 2, [MIB // 2], dtype=5)
    most = 0
    for slot in range(0, 1000, 2):
        sequence = peer.submit(peer.task(copy, [(slot, 0, 1), (slot + 1, 0, 2)]))
        if sequence % 50 == 0:
            until(lambda: peer.completed() >= sequence)  # noqa: B023
            [device] = [device for device in server.status()["devices"] if device["id"] == "cpu:1"]
            most = max(most, device["used_nbytes"])
    until(lambda: peer.completed() == peer.tail)
    assert 0 < most <= 2 * MIB


def test_one_process_cannot_take_the_places_of_all_clients(server: ServerProcess) -> None:
    clients = []
    try:
        with pytest.raises(InvalidRequest, match=f"process {os.getpid()} has 14 of the server's 16 clients"):
            while True:
                clients.append(server.connect())
        words = f"from polymux.client import Client; print(Client({str(server.socket)!r}).devices)"
        for _ in range(3):
            assert "cpu:0" in os.popen(f'{sys.executable} -c "{words}"').read()
    finally:
        for client in clients:
            client.close()
    until(lambda: not server.status()["applications"])


def test_connections_that_never_say_hello_keep_nobody_out(server: ServerProcess) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    silent: list[RawPeer] = []
    try:
        with server.connect() as before:
            queue = before.queue()
            silent += [RawPeer(str(server.socket)) for _ in range(700)]
            with server.connect() as after:
                x, y = after.queue().array(np.ones(3)), queue.zeros(3, "f8")
                after.queue().submit("copy", [x], [after.queue().zeros(3, "f8")]).wait(30)
            queue.submit("copy", [queue.array(np.ones(3))], [y]).wait(30)
            assert y.numpy().tolist() == [1, 1, 1]
        with pytest.raises(DroppedError):
            silent[0].ask("status")
    finally:
        for peer in silent:
            peer.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    server.connect().close()


def test_overlapping_buffers_cannot_be_exported_beyond_the_segments_size(
    server: ServerProcess, peer: RawPeer
) -> None:
    peer.open_queue()
    for slot in range(50):
        peer.buffer(slot, peer.free, 8 * MIB, [8 * MIB], dtype=5)
    assert peer.ask("export", slot=0, generation=0)[0] == "ok"
    for slot in range(1, 50):
        assert "shared already" in refused(peer, "export", slot=slot, generation=0)
    assert server.status()["server"]["grants"] == 1


def test_one_grant_cannot_be_imported_into_one_place_again_and_again(
    server: ServerProcess, peer: RawPeer
) -> None:
    peer.open_queue()
    with server.connect("owner") as owner:
        buffer = owner.queue().zeros(100_000, "u1")
        token = buffer.export()
        before = server.descriptors()
        assert peer.ask("import", token=token, offset=peer.free, slot=0, generation=0)[0] == "ok"
        for slot in range(200):
            assert "shared already" in refused(
                peer, "import", token=token, offset=peer.free, slot=slot, generation=0
            )
        assert server.descriptors() <= before + 4


def test_a_session_shares_a_bounded_number_of_buffers(server: ServerProcess, peer: RawPeer) -> None:
    peer.open_queue()
    before = server.descriptors()
    for slot in range(1025):
        peer.buffer(slot, peer.free + 4096 * slot, 4096, [4096], dtype=5)
        head, answer, descriptors = peer.ask("export", slot=slot, generation=0)
        for descriptor in descriptors:
            os.close(descriptor)
    assert (head, "1024" in answer["message"]) == ("error", True)
    peer.close()
    until(lambda: server.descriptors() < before)


def test_a_guest_that_comes_and_goes_leaves_nothing_with_the_grant(server: ServerProcess) -> None:
    with server.connect("owner") as owner, server.connect("guest") as guest:
        buffer = owner.queue().zeros(20_000, "f8")
        token = buffer.export()
        for _ in range(200):
            guest.import_buffer(token).close()
        descriptors, rss_nbytes = server.descriptors(), server.rss_nbytes()
        for _ in range(2000):
            guest.import_buffer(token).close()
        until(lambda: server.descriptors() <= descriptors)
        assert server.rss_nbytes() - rss_nbytes < MIB


def test_queue_regions_and_counters_outside_the_segment_are_refused(peer: RawPeer) -> None:
    nbytes = peer.bytes.size
    for offset in (0, 64, nbytes, nbytes - 64, 2**45, peer.region + 1):
        assert refused(peer, "queue_open", offset=offset, capacity=64)
    for capacity in (0, 1, 63, 2**17, 2**31):
        assert refused(peer, "queue_open", offset=peer.region, capacity=capacity)
    last = (nbytes - queue_nbytes(16)) // 4096 * 4096
    assert peer.ask("queue_open", offset=last, capacity=16)[0] == "ok"


def test_kernels_of_a_session_have_a_bounded_size(server: ServerProcess) -> None:
    with server.connect() as client:
        data = os.urandom(30 * MIB)

        def kernel(x: object, y: object, data: bytes = data) -> None:
            pass

        with pytest.raises(InvalidRequest, match="give data in buffers"):
            for number in range(20):
                spec = KernelSpec(f"k{number}", (BufferParam("x"),), (BufferParam("y"),))
                client.register(spec, PythonFunction(kernel))
        assert 6 <= number <= 9
        queue = client.queue()
        queue.submit("copy", [queue.zeros(3)], [queue.zeros(3)]).wait(30)


def test_more_than_a_device_has_is_refused_at_once_to_whoever_asks_by_hand(
    server: ServerProcess, peer: RawPeer
) -> None:
    peer.open_queue(device="cpu:1")
    peer.buffer(0, peer.free, 3 * MIB, [3 * MIB], dtype=5)
    sequence = peer.submit(peer.task(peer.kernel_id("copy"), [(0, 0, 3), (0, 0, 3)]))
    until(lambda: peer.completed() >= sequence)
    status, text = peer.outcome(sequence)
    assert status == TaskStatus.OUT_OF_MEMORY
    assert "3.0 MiB" in text
    assert "2.0 MiB" in text
