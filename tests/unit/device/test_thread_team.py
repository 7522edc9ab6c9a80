from __future__ import annotations

import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymux.core.errors import Closed
from polymux.device.cores import allowed_cores
from polymux.device.thread_team import ThreadTeam, split

CORES = allowed_cores()[:1] * 3  # three threads, wherever the tests run


@given(st.integers(0, 10_000), st.integers(1, 70), st.integers(1, 130))
def test_chunks_cover_the_range_once_begin_aligned_and_are_nearly_equal(
    n: int, parts: int, align: int
) -> None:
    chunks = split(n, parts, align)
    assert len(chunks) <= parts
    assert [i for begin, end in chunks for i in range(begin, end)] == list(range(n))
    assert all(begin % align == 0 and begin < end for begin, end in chunks)
    sizes = [-(-(end - begin) // align) for begin, end in chunks]
    assert not sizes or max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(("n", "parts", "align"), [(-1, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_a_split_that_cannot_be_is_refused(n: int, parts: int, align: int) -> None:
    with pytest.raises(ValueError, match="cannot split"):
        split(n, parts, align)


def test_every_chunk_has_a_thread_of_its_own_the_first_one_the_callers() -> None:
    team = ThreadTeam(CORES)
    together = threading.Barrier(3)
    threads: dict[int, int] = {}

    def body(begin: int, end: int) -> None:
        together.wait(30)
        threads[begin] = threading.get_ident()

    team.parallel_for(30, body, align=10)
    assert sorted(threads) == [0, 10, 20]
    assert threads[0] == threading.get_ident()
    assert len(set(threads.values())) == 3
    team.close()


def test_nothing_to_do_calls_nothing_and_little_to_do_starts_no_thread() -> None:
    team = ThreadTeam(CORES)
    calls: list[tuple[int, int, int]] = []

    def body(begin: int, end: int) -> None:
        calls.append((begin, end, threading.get_ident()))

    team.parallel_for(0, body)
    team.parallel_for(1, body)
    team.parallel_for(64, body, align=64)
    assert calls == [(0, 1, threading.get_ident()), (0, 64, threading.get_ident())]
    assert team._threads == []
    team.close()


def test_the_first_failure_in_order_is_raised_after_all_chunks_have_ended() -> None:
    team = ThreadTeam(CORES)
    ended: list[int] = []

    def body(begin: int, end: int) -> None:
        ended.append(begin)
        if begin > 0:
            raise ValueError(f"chunk {begin}")

    for _ in range(20):
        ended.clear()
        with pytest.raises(ValueError, match="chunk 1"):
            team.parallel_for(3, body)
        assert sorted(ended) == [0, 1, 2]
    team.close()


def test_the_caller_gets_its_own_cores_back_even_when_the_body_fails() -> None:
    team = ThreadTeam(CORES)
    before = os.sched_getaffinity(0)
    with pytest.raises(ZeroDivisionError):
        team.parallel_for(3, lambda *_: 1 // 0)
    assert os.sched_getaffinity(0) == before
    team.close()


def test_a_body_that_uses_the_team_itself_does_not_block() -> None:
    team = ThreadTeam(CORES)
    counts: list[int] = []
    team.parallel_for(3, lambda *_: team.parallel_for(5, lambda begin, end: counts.append(end - begin)))
    assert sum(counts) == 15
    team.close()


def test_a_closed_team_has_no_threads_and_refuses_work() -> None:
    team = ThreadTeam(CORES, name="closing")
    team.parallel_for(3, lambda *_: None)
    assert sum(thread.name.startswith("closing") for thread in threading.enumerate()) == 2
    team.close()
    team.close()
    assert not any(thread.name.startswith("closing") for thread in threading.enumerate())
    with pytest.raises(Closed):
        team.parallel_for(3, lambda *_: None)


def test_a_team_of_no_cores_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one core"):
        ThreadTeam(())
