from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymux.core.status import TaskStatus
from polymux.device.own_memory import CapacityAccount, HostPages, host_memory_nbytes
from polymux.device.protocol import LaunchError, OutOfMemory


@given(st.lists(st.integers(0, 60), max_size=40))
def test_the_account_equals_the_sum_of_what_is_taken_and_never_exceeds_the_capacity(sizes: list[int]) -> None:
    account = CapacityAccount("cpu:1", 200)
    taken: list[int] = []
    for nbytes in sizes:
        if taken and nbytes % 3 == 0:
            account.give(taken.pop())
        elif sum(taken) + nbytes > 200:
            with pytest.raises(
                OutOfMemory, match=rf"cpu:1 cannot allocate {nbytes} bytes: {200 - sum(taken)} of 200"
            ):
                account.take(nbytes)
        else:
            account.take(nbytes)
            taken.append(nbytes)
        assert account.used_nbytes == sum(taken) <= 200


def test_pages_are_aligned_zeroed_writable_and_accounted() -> None:
    pages = HostPages("cpu:1", 1 << 23)
    for nbytes in (0, 1, 4097, 3 << 20):
        memory = pages.allocate(nbytes)
        assert memory.shape == (nbytes,)
        assert memory.dtype == np.uint8
        assert nbytes == 0 or memory.ctypes.data % 4096 == 0
        assert not memory.any()
        memory[...] = 1
        assert pages.used_nbytes == nbytes
        pages.free(memory)
        assert pages.used_nbytes == 0


def test_freeing_what_is_no_allocation_is_refused() -> None:
    pages = HostPages("cpu:1", 1000)
    memory = pages.allocate(10)
    with pytest.raises(ValueError, match="no live allocation of cpu:1"):
        pages.free(np.zeros(10, np.uint8))
    pages.free(memory)
    with pytest.raises(ValueError, match="no live allocation"):
        pages.free(memory)


def test_what_the_host_refuses_costs_no_capacity() -> None:
    pages = HostPages("cpu:1", 1 << 62)
    with pytest.raises(OutOfMemory, match="the host refuses"):
        pages.allocate(1 << 61)
    assert pages.used_nbytes == 0


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(ValueError, match="-1 bytes"):
        HostPages("cpu:1", 100).allocate(-1)


def test_the_errors_survive_a_trip_between_processes() -> None:
    for error in (OutOfMemory("full"), LaunchError(TaskStatus.KERNEL_FAILED, "broken")):
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), copy.code, copy.message) == (type(error), error.code, error.message)
        assert str(copy) == f"{error.code.name}: {error.message}"


def test_the_host_has_some_memory() -> None:
    assert host_memory_nbytes() > 1 << 20
