"""A hostile client with a live session: it gets an error or is dropped, and the others get right answers meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polymux.core.status import TaskStatus
from polymux.segment import queue_nbytes, slots_in_queue
from tests.segment.raw_peer import HEADER, LAYOUT, REFERENCE, DroppedError, RawPeer
from tests.segment.server_process import ServerProcess, until

KERNELS = Path(__file__).with_name("kernels_of_operator.py")
DEVICES = ("cpu:0", "cpu:1")
ROUNDS = 150
"""Sessions of noise, each of `BURSTS` fillings of a ring of 64 tasks."""
BURSTS = 6
SEQUENCE = range(LAYOUT["task_sequence"], LAYOUT["task_sequence"] + 8)
SAXPY_ARGUMENTS = np.array(2.0).tobytes()
Noise = Callable[[RawPeer, np.random.Generator], None]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    devices = ("--device", "cpu", "--device", "cpu:0,memory_nbytes=4MiB,streams=1")
    with ServerProcess(tmp_path_factory.mktemp("server"), *devices, "--kernels", str(KERNELS)) as made:
        yield made


class Bystander:
    """A client that computes on every device until told to stop, and remembers what was wrong."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._stop = threading.Event()
        self.right = 0
        self.wrong: list[str] = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Bystander:
        self._thread.start()
        until(lambda: self.right > 0 or bool(self.wrong), 60)
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            with self._server.connect("bystander") as client:
                queues = [client.queue(device=device) for device in ("cpu:0", "cpu:1")]
                number = 0
                while not self._stop.is_set():
                    number += 1
                    for queue in queues:
                        x, y = queue.array(np.full(500, number, "f8")), queue.zeros(500, "f8")
                        queue.submit("double", [x], [y])
                        queue.submit("saxpy", [y, y], [y], a=3.0).wait(60)
                        if not (y.numpy() == 8 * number).all():
                            self.wrong.append(f"{queue.name}: {y.numpy()[:4]} for {number}")
                    self.right += 1
        except Exception as error:
            self.wrong.append(repr(error))


def tasks_of(server: ServerProcess) -> int:
    """Count the tasks that the server has completed."""
    return sum(stream["tasks"] for device in server.status()["devices"] for stream in device["streams"])


def write_table(peer: RawPeer, random: np.random.Generator) -> None:
    """Write eight entries of the buffer table, most of them with something wrong."""
    for slot in range(8):
        peer.buffer(slot, peer.free + 4096 * slot, 4096, [512], dtype=11)
        entry = LAYOUT["table_offset"] + slot * LAYOUT["buffer_entry_nbytes"]
        for at in random.integers(0, 96, random.integers(0, 4)):
            peer.bytes[entry + at] = random.integers(0, 256)


def nearly_right(peer: RawPeer, random: np.random.Generator, kernels: list[int]) -> None:
    """Submit tasks of real kernels with a few wrong bytes."""
    write_table(peer, random)
    for _ in range(peer.capacity):
        refs = [
            (int(random.integers(0, 9)), 0, int(random.integers(1, 4))) for _ in range(random.integers(0, 5))
        ]
        arguments = SAXPY_ARGUMENTS if random.random() < 0.5 else random.bytes(int(random.integers(0, 64)))
        data = bytearray(peer.task(int(random.choice(kernels)), refs, arguments))
        for at in random.integers(0, len(data), random.integers(0, 3)):
            if at not in SEQUENCE or random.random() < 0.002:  # a wrong one ends the session
                data[at] = random.integers(0, 256)
        peer.submit(bytes(data))


def pure_noise(peer: RawPeer, random: np.random.Generator, kernels: list[int]) -> None:
    """Fill the ring with noise, with right sequence numbers so that the checks behind them are reached."""
    write_table(peer, random)
    for _ in range(peer.capacity):
        data = bytearray(random.bytes(LAYOUT["task_slot_nbytes"]))
        count = int(random.integers(0, 20))
        header = HEADER.pack(
            int(random.choice(kernels)), *(int(n) for n in random.integers(0, 300, 1)), count, 0, peer.tail + 1,
            *(int(n) for n in random.integers(0, 100, 5)),
        )  # fmt: skip
        data[: len(header)] = header
        for i in range(min(count, 16)):
            at = HEADER.size + REFERENCE.size * i
            data[at : at + REFERENCE.size] = REFERENCE.pack(*(int(n) for n in random.integers(0, 10, 3)), 0)
        peer.submit(bytes(data))


def noise_everywhere(peer: RawPeer, random: np.random.Generator, kernels: list[int]) -> None:
    """Write noise over a page's worth of the segment's header, the queue's header, or the whole ring."""
    begin, nbytes = (
        (0, 4096),
        (peer.region, 512),
        (peer.region, slots_in_queue(peer.capacity)),
        (peer.region, queue_nbytes(peer.capacity)),
    )[random.integers(0, 4)]
    for at in random.integers(0, nbytes, 1 + int(random.integers(0, nbytes))):
        peer.bytes[begin + at] = random.integers(0, 256)
    peer.ring()


def sequence_jumps(peer: RawPeer, random: np.random.Generator, kernels: list[int]) -> None:
    """Publish a task that cannot be the next one."""
    peer.publish(int(random.integers(0, 2**63)) if random.random() < 0.5 else peer.tail)


NOISES = (nearly_right, nearly_right, pure_noise, pure_noise, noise_everywhere, sequence_jumps)


def session_of_noise(server: ServerProcess, random: np.random.Generator) -> bool:
    """Connect, make noise, and go without a word; whether the server dropped the connection."""
    with RawPeer(str(server.socket)) as peer:
        peer.hello()
        peer.open_queue(device=DEVICES[random.integers(0, len(DEVICES))])
        kernels = [peer.kernel_id(name) for name in ("noop", "saxpy", "double", "copy", "reduce", "half")] + [
            0,
            1,
        ]
        try:
            for _ in range(BURSTS):
                NOISES[random.integers(0, len(NOISES))](peer, random, kernels)
                peer.ask("status")  # waits a little, and notices when the server has had enough
        except DroppedError:
            return True
    return False


def test_noise_in_ring_table_and_headers_of_a_live_session_hurts_nobody_else(server: ServerProcess) -> None:
    random = np.random.default_rng(20261201)
    with Bystander(server) as bystander:
        session_of_noise(server, random)
        before = tasks_of(server)
        dropped = sum(session_of_noise(server, random) for _ in range(ROUNDS))
        seen = bystander.right
        until(lambda: bystander.right > seen + 1 or bool(bystander.wrong), 60)
        assert tasks_of(server) - before > 10_000
    assert bystander.wrong == []
    assert 0 < dropped < ROUNDS
    until(lambda: not server.status()["applications"])
    assert all(device["used_nbytes"] == 0 for device in server.status()["devices"])


@pytest.fixture
def peer(server: ServerProcess) -> Iterator[RawPeer]:
    with RawPeer(str(server.socket)) as made:
        made.hello()
        yield made
    until(lambda: not server.status()["applications"])


@pytest.mark.parametrize("device", DEVICES)
def test_forged_references_reach_nobody_elses_buffers(
    server: ServerProcess, peer: RawPeer, device: str
) -> None:
    """Every slot and generation that another client uses is tried."""
    peer.open_queue(device=device)
    fill = peer.kernel_id("fill")
    with server.connect("victim") as victim:
        queue = victim.queue(device=device)
        kept = [queue.array(np.full(1000, 5.0)) for _ in range(20)]
        for buffer in kept:
            queue.submit("copy", [buffer], [buffer]).wait(30)
        for number in range(60):
            slot, generation = number % 20, number // 20
            sequence = peer.submit(peer.task(fill, [(slot, generation, 2)], np.array(7.0).tobytes()))
            until(lambda: peer.completed() >= sequence)  # noqa: B023
            assert peer.outcome(sequence)[0] == TaskStatus.BAD_BUFFER
            for operation in ("export", "unshare", "release"):
                peer.ask(operation, slot=slot, generation=generation)
        for buffer in kept:
            assert (buffer.numpy() == 5.0).all()


ENTRIES: dict[str, tuple[dict[str, Any], tuple[int, int, int], str]] = {
    "a generation of before": ({"generation": 3}, (0, 2, 3), "not a live buffer"),
    "a slot beyond the table": ({}, (65536, 0, 3), "out of range"),
    "the last slot, never used": ({}, (65535, 0, 3), "not a live buffer"),
    "no access": ({}, (0, 0, 0), "access 0"),
    "more access than there is": ({}, (0, 0, 4), "access 4"),
    "a shape that overflows": ({"shape": [2**32, 2**32]}, (0, 0, 3), "impossible"),
    "a shape that overflows to little": ({"shape": [2**61, 8]}, (0, 0, 3), "impossible"),
    "a negative shape": ({"shape": [-1, -1]}, (0, 0, 3), "impossible"),
    "more dimensions than there are": ({"shape": [1] * 8, "ndim": 9}, (0, 0, 3), "impossible"),
    "an unknown dtype": ({"dtype": 15}, (0, 0, 3), "impossible"),
    "a shape beyond its bytes": ({"shape": [513]}, (0, 0, 3), "outside the segment"),
    "bytes of the table": ({"offset": LAYOUT["table_offset"]}, (0, 0, 3), "outside the segment"),
    "bytes behind the segment": ({"offset": 32 << 20}, (0, 0, 3), "outside the segment"),
    "an offset that overflows": ({"offset": 2**64 - 16}, (0, 0, 3), "outside the segment"),
    "an odd offset": ({"offset": LAYOUT["data_offset"] + (1 << 20) + 1}, (0, 0, 3), "outside the segment"),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ENTRIES)
def test_a_reference_that_cannot_be_is_an_error_of_its_task(peer: RawPeer, device: str, kind: str) -> None:
    changes, reference, said = ENTRIES[kind]
    peer.open_queue(device=device)
    entry = {"offset": peer.free, "nbytes": 4096, "shape": [512], "dtype": 11, **changes}
    dimensions = entry.pop("ndim", len(entry["shape"]))
    peer.buffer(0, **entry)
    peer.put(LAYOUT["table_offset"] + 8, np.int32(dimensions).tobytes())
    bad = peer.submit(peer.task(peer.kernel_id("noop"), [reference]))
    good = peer.submit(peer.task(peer.kernel_id("noop"), []))
    until(lambda: peer.completed() >= good)
    status, text = peer.outcome(bad)
    assert status == TaskStatus.BAD_BUFFER
    assert said in text
    assert peer.outcome(good)[0] == TaskStatus.OK


def test_a_buffer_that_changes_while_it_is_on_a_device_is_refused_there_and_copied_nowhere_else(
    server: ServerProcess, peer: RawPeer
) -> None:
    peer.open_queue(device="cpu:1")
    copy, to_host = peer.kernel_id("copy"), 1
    peer.buffer(0, peer.free, 4096, [512], dtype=11)
    last = peer.submit(peer.task(copy, [(0, 0, 3), (0, 0, 3)]))
    until(lambda: peer.completed() >= last)
    guard = peer.free + 8192
    peer.bytes[guard : guard + 4096] = 77
    for offset, nbytes in ((guard, 4096), (peer.free, 8192), (peer.free, 64), (guard, 64)):
        peer.buffer(0, offset, nbytes, [8], dtype=11)
        for kernel, refs in ((copy, [(0, 0, 3), (0, 0, 3)]), (to_host, [(0, 0, 3)])):
            last = peer.submit(peer.task(kernel, refs))
            until(lambda: peer.completed() >= last)  # noqa: B023
            assert peer.outcome(last)[0] == TaskStatus.BAD_BUFFER
    assert (peer.bytes[guard : guard + 4096] == 77).all()
    peer.buffer(0, peer.free, 4096, [512], dtype=11)
    last = peer.submit(peer.task(to_host, [(0, 0, 3)]))
    until(lambda: peer.completed() >= last)
    assert peer.outcome(last)[0] == TaskStatus.OK
