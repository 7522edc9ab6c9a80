"""Large buffers: their memory is there, zeroed, theirs alone, and in huge pages where the system has them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import polymux
from polymux.client import Client

MIB = 1 << 20


@pytest.fixture
def client() -> Iterator[Client]:
    with polymux.connect(segment_nbytes=256 * MIB) as made:
        yield made


def huge_kib() -> int:
    lines = Path("/proc/self/smaps").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("ShmemPmdMapped:"))


def test_a_large_buffer_is_zero_and_keeps_what_is_written_next_to_others(client: Client) -> None:
    queue = client.queue()
    small = [queue.array(np.full(100, number, "i4")) for number in range(10)]
    large = queue.empty(5 * MIB + 123, "u1")
    assert not large.numpy().any()
    large.numpy()[:] = 7
    after = queue.array(np.arange(1000))
    assert (large.numpy() == 7).all()
    assert all((buffer.numpy() == number).all() for number, buffer in enumerate(small))
    assert (after.numpy() == np.arange(1000)).all()


def test_memory_that_is_used_again_works_as_before(client: Client) -> None:
    queue = client.queue()
    for round_ in range(20):
        buffers = [queue.zeros(size * MIB // 4 + round_, "i4") for size in (1, 3, 9, 20)]
        for number, buffer in enumerate(buffers):
            assert not buffer.numpy().any()
            buffer.numpy()[:] = number + 1
        assert all((buffer.numpy() == number + 1).all() for number, buffer in enumerate(buffers))
        for buffer in buffers:
            buffer.close()


def test_a_large_buffer_lies_in_huge_pages_where_the_system_makes_them(client: Client) -> None:
    before = huge_kib()
    buffer = client.queue().empty(32 * MIB, "u1")
    buffer.numpy()[:] = 1
    if huge_kib() == before:
        pytest.skip("this system makes no huge pages of shared memory")
    assert huge_kib() - before >= 16 * 1024


def free_nbytes() -> int:
    line = next(
        line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemFree:")
    )
    return int(line.split()[1]) << 10


def test_a_buffer_that_needs_much_of_the_free_memory_is_not_taken_at_once() -> None:
    free = free_nbytes()
    with polymux.connect(segment_nbytes=free * 9 // 20) as client:
        client.queue().empty(free * 2 // 5, "u1")
        assert free_nbytes() > free * 3 // 4
