"""What a client writes into its segment never hurts the server: it is refused by name, or run within bounds."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polymux.segment import SegmentError, queue_nbytes, slots_in_queue
from tests.segment.hand_made_client import LAYOUT, NOOP, TAKES_TWO, HandMadeClient

ARGUMENTS = bytes(16)


@pytest.fixture
def client() -> Iterator[HandMadeClient]:
    made = HandMadeClient()
    yield made
    made.close()


def test_a_proper_task_runs(client: HandMadeClient) -> None:
    client.buffer(0, client.free, 64, [16])
    client.buffer(1, client.free + 64, 64, [16])
    client.descriptor(client.task(TAKES_TWO, [(0, 0, 1), (1, 0, 2)], ARGUMENTS))
    assert client.drain() == []
    assert client.calls == [(2, 16)]
    assert client.completed() == client.tail


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        ({"offset": 0, "nbytes": 64, "shape": [16]}, "outside the segment"),
        ({"offset": LAYOUT["table_offset"], "nbytes": 64, "shape": [16]}, "outside the segment"),
        ({"offset": 2**63, "nbytes": 64, "shape": [16]}, "outside the segment"),
        ({"offset": 2**64 - 64, "nbytes": 128, "shape": [16]}, "outside the segment"),
        ({"offset": (64 << 20) - 32, "nbytes": 64, "shape": [16]}, "outside the segment"),
        ({"offset": LAYOUT["data_offset"] + 8, "nbytes": 64, "shape": [16]}, "outside the segment"),
        ({"offset": LAYOUT["data_offset"], "nbytes": 63, "shape": [16]}, "outside the segment"),
        ({"offset": LAYOUT["data_offset"], "nbytes": 64, "shape": [-1]}, "impossible"),
        ({"offset": LAYOUT["data_offset"], "nbytes": 64, "shape": [2**62, 8]}, "impossible"),
        ({"offset": LAYOUT["data_offset"], "nbytes": 64, "shape": [2**32, 2**32]}, "impossible"),
        ({"offset": LAYOUT["data_offset"], "nbytes": 64, "shape": [16], "dtype": 15}, "impossible"),
        ({"offset": LAYOUT["data_offset"], "nbytes": 64, "shape": [16], "dtype": -1}, "impossible"),
        (
            {"offset": LAYOUT["data_offset"], "nbytes": 64, "shape": [16], "generation": 7},
            "not a live buffer",
        ),
        ({"offset": LAYOUT["data_offset"], "nbytes": 0, "shape": [16]}, "not a live buffer"),
    ],
)
def test_a_buffer_entry_that_cannot_be_is_refused(
    client: HandMadeClient, entry: dict, complaint: str
) -> None:
    client.buffer(0, **entry)
    client.descriptor(client.task(NOOP, [(0, 0, 3)]))
    [(status, text)] = client.drain()
    assert status == 4
    assert complaint in text
    assert client.calls == []


@pytest.mark.parametrize(
    ("descriptor", "status"),
    [
        (struct.pack("<IHBBQqbBHI", NOOP, 0, 17, 0, 1, 0, 0, 0, 0, 0), 1),
        (struct.pack("<IHBBQqbBHI", NOOP, 257, 0, 0, 1, 0, 0, 0, 0, 0), 1),
        (struct.pack("<IHBBQqbBHIIHBB", NOOP, 0, 1, 0, 1, 0, 0, 0, 0, 0, 2**32 - 1, 0, 3, 0), 4),
        (struct.pack("<IHBBQqbBHIIHBB", NOOP, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 4, 0), 4),
        (struct.pack("<IHBBQqbBHI", 2**32 - 1, 0, 0, 0, 1, 0, 0, 0, 0, 0), 2),
    ],
)
def test_a_descriptor_that_cannot_be_is_refused(
    client: HandMadeClient, descriptor: bytes, status: int
) -> None:
    client.descriptor(descriptor)
    assert [found for found, _ in client.drain()] == [status]
    assert client.completed() == client.tail


def test_a_native_kernel_never_sees_buffers_it_does_not_take(client: HandMadeClient) -> None:
    client.buffer(0, client.free, 64, [16])
    client.buffer(1, client.free + 64, 64, [8], dtype=11)
    for refs, arguments in (
        ([(0, 0, 1)], ARGUMENTS),
        ([(0, 0, 1), (1, 0, 2)], ARGUMENTS),
        ([(0, 0, 1), (0, 0, 2)], b""),
        ([(0, 0, 2), (0, 0, 2)], ARGUMENTS),
        ([(0, 0, 1), (0, 0, 1)], ARGUMENTS),
    ):
        client.descriptor(client.task(TAKES_TWO, refs, arguments))
    assert len(client.drain()) == 5
    assert client.calls == []


@pytest.mark.parametrize("done", [0, 1, 63, 64, 200])
@pytest.mark.parametrize("wrong", [1, -1, 64, 65, -63, -64, -65, 10_000, 2**63, 2**64 - 1])
def test_a_sequence_that_cannot_be_next_is_a_violation(client: HandMadeClient, done: int, wrong: int) -> None:
    for _ in range(done):
        client.descriptor(client.task(0, []))
        while client.worker.next(block=False)[0] != "idle":
            pass
    assert client.completed() == done
    sequence = (done + 1 + wrong) % 2**64
    client.descriptor(client.task(NOOP, [], sequence=sequence))
    while (outcome := client.worker.next(block=False))[0] == "woken":
        pass
    assert client.calls == []
    if sequence == 0 or wrong == -64:
        assert outcome == ("idle", None), "that of the lap before is no task yet"
        return
    kind, (queue, text) = outcome
    assert (kind, queue) == ("violation", "q")
    assert text == f"there is a task with sequence {sequence} in the ring, where only {done + 1} can be"
    assert client.worker.next(block=False) == ("idle", None), "nothing more of it is looked at"


def test_a_sequence_that_changes_while_it_is_read_hurts_nobody() -> None:
    """Another thread writes the word millions of times meanwhile, with the interpreter's lock released."""
    outcomes = set()
    for turn in range(100):
        client = HandMadeClient()
        client.descriptor(client.task(0, [], sequence=0))
        at = client.region + slots_in_queue(client.capacity) + LAYOUT["task_sequence"]
        word = client.bytes[at : at + 8].view("<u8")
        often = np.lib.stride_tricks.as_strided(word, (1_000_000,), (0,))
        values = np.resize(np.array([1, 2**63 + turn, 0, 1], "<u8").repeat(1 + turn % 7), len(often))
        flipping = threading.Thread(target=np.copyto, args=(often, values))
        flipping.start()
        while flipping.is_alive() and not client.completed():
            kind, payload = client.worker.next(block=False)
            outcomes.add(kind)
            if kind == "task":
                assert payload.status == 1
                client.worker.complete(payload, 1, payload.fault)
            elif kind == "violation":
                break
        flipping.join()
        outcomes |= {"completed"} if client.completed() else set()
        del word, often
        client.close()
    assert outcomes & {"violation", "completed"}
    assert outcomes <= {"idle", "woken", "task", "violation", "completed"}


@pytest.mark.parametrize(
    ("offset", "capacity"),
    [(0, 64), (LAYOUT["data_offset"] + 8, 64), (2**64 - 64, 64), ((64 << 20) - queue_nbytes(64) + 64, 64)]
    + [(LAYOUT["data_offset"], capacity) for capacity in (0, 1, 8, 63, 65, 2**17, 2**31)],
)
def test_a_queue_region_that_cannot_be_is_refused(client: HandMadeClient, offset: int, capacity: int) -> None:
    with pytest.raises(SegmentError):
        client.segment.open_queue(offset, capacity)


def test_the_segment_cannot_be_resized_by_its_client(client: HandMadeClient) -> None:
    import os

    for size in (4096, client.segment.nbytes * 2):
        with pytest.raises(PermissionError):
            os.ftruncate(client.segment.fd, size)


def test_a_hundred_thousand_random_descriptors_and_tables_hurt_nobody(client: HandMadeClient) -> None:
    """Half of them pure noise, half nearly right: a proper task with a few bytes changed."""
    random = np.random.default_rng(20261130)
    slot_nbytes = LAYOUT["task_slot_nbytes"]
    table = LAYOUT["table_offset"]
    entry_nbytes = LAYOUT["buffer_entry_nbytes"]
    inputs = 0
    while inputs < 100_000:
        for slot in range(4):
            client.buffer(slot, client.free + 4096 * slot, 4096, [32, 32])
            if random.random() < 0.3:
                for at in random.integers(0, 96, 3):
                    client.bytes[table + slot * entry_nbytes + at] = random.integers(0, 256)
        for _ in range(client.capacity - 1):
            if random.random() < 0.5:
                data = random.integers(0, 256, slot_nbytes, np.uint8)
                if random.random() < 0.8:  # sizes that can be, so that the checks behind them are reached
                    data[6] %= 20
                    data[5] %= 2
            else:
                proper = client.task(TAKES_TWO, [(int(random.integers(0, 5)), 0, 1), (1, 0, 2)], ARGUMENTS)
                data = np.frombuffer(proper, np.uint8).copy()
                for at in random.integers(0, len(data), random.integers(0, 3)):
                    data[at] = random.integers(0, 256)
            # A right sequence: with any other the queue is at an end.
            data[8:16] = np.frombuffer(struct.pack("<Q", client.tail + 1), np.uint8)
            client.descriptor(data.tobytes())
            inputs += 1
        client.drain()
        assert client.completed() == client.tail
    assert client.calls, "some of the nearly right ones run"


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kernel=st.sampled_from([0, 1, NOOP, TAKES_TWO, 18, 2**32 - 1]),
    n_buffers=st.integers(0, 255),
    arguments_nbytes=st.integers(0, 2**16 - 1),
    refs=st.lists(
        st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**16 - 1), st.integers(0, 255)), max_size=16
    ),
    entry=st.binary(min_size=96, max_size=96),
)
def test_whatever_a_descriptor_says_the_task_ends(
    client: HandMadeClient,
    kernel: int,
    n_buffers: int,
    arguments_nbytes: int,
    refs: list[tuple[int, int, int]],
    entry: bytes,
) -> None:
    client.put(LAYOUT["table_offset"], entry)
    header = struct.pack(
        "<IHBBQqbBHI", kernel, arguments_nbytes, n_buffers, 0, client.tail + 1, 0, 0, 0, 0, 0
    )
    client.descriptor(header + b"".join(struct.pack("<IHBB", *ref, 0) for ref in refs))
    client.drain()
    assert client.completed() == client.tail
