from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, wait

import pytest

from polymux.core.errors import Closed, KernelFailed, QueueFull, Rejected
from polymux.inputs import StagePool
from polymux.inputs.stage import Results
from tests.unit.inputs.stages import TIMEOUT_S, Doubling, raw

ITEM_NBYTES = 64
"""Room for a result of `Doubling`, which stays with it."""


@pytest.fixture
def doubling() -> Iterator[Doubling]:
    made = Doubling()
    yield made
    made.gate.set()


def values(future: Future[Results]) -> list[float]:
    (array,) = future.result(TIMEOUT_S)
    return [float(value) for value in array]


def hold(pool: StagePool, doubling: Doubling) -> Future[Results]:
    """Have one item occupy the only thread until the gate opens."""
    doubling.gate.clear()
    first = pool.submit(doubling.stage, raw("0"))
    assert doubling.begun.acquire(timeout=TIMEOUT_S)
    return first


def test_items_run_on_threads_of_the_pool_and_no_more_than_it_has(doubling: Doubling) -> None:
    with StagePool(2) as pool:
        futures = [pool.submit(doubling.stage, raw(f"{index}")) for index in range(20)]
        assert [values(future) for future in futures] == [[2.0 * ord(c) for c in f"{i}"] for i in range(20)]
        assert doubling.threads <= {"polymux-stage-0", "polymux-stage-1"}
    assert not [thread for thread in threading.enumerate() if thread.name in doubling.threads]


def test_results_cannot_be_written_to(doubling: Doubling) -> None:
    with StagePool(1) as pool:
        (array,) = pool.submit(doubling.stage, raw("a")).result(TIMEOUT_S)
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


def test_what_is_shared_runs_once_while_it_waits_while_it_runs_and_afterwards(doubling: Doubling) -> None:
    with StagePool(1) as pool:
        first = hold(pool, doubling)
        waiting = [pool.submit(doubling.stage, raw("a"), share=True) for _ in range(3)]
        doubling.gate.set()
        assert doubling.begun.acquire(timeout=TIMEOUT_S)
        later = pool.submit(doubling.stage, raw("a"), share=True)
        assert {tuple(values(future)) for future in [*waiting, later]} == {(2.0 * ord("a"),)}
        values(first)
        assert values(pool.submit(doubling.stage, raw("a"), share=True)) == [2.0 * ord("a")]
        counts = pool.counts()["doubling"]
    assert doubling.runs.count(b"a") == 1
    assert (counts.runs, counts.shared, counts.failed) == (2, 4, 0)


def test_only_the_same_stage_and_bytes_are_shared_and_only_where_both_share(doubling: Doubling) -> None:
    other = Doubling("another identity")
    with StagePool(1) as pool:
        futures = [
            pool.submit(doubling.stage, raw("a"), share=True),
            pool.submit(doubling.stage, raw("b"), share=True),
            pool.submit(other.stage, raw("a"), share=True),
            pool.submit(doubling.stage, raw("a")),
        ]
        wait(futures, TIMEOUT_S)
    assert doubling.runs == [b"a", b"b", b"a"]
    assert other.runs == [b"a"]


def test_the_results_that_are_kept_have_a_bound_and_the_least_used_go_first(doubling: Doubling) -> None:
    with StagePool(1, shared_nbytes=2 * ITEM_NBYTES) as pool:
        for text in ("a", "b", "a", "c", "a", "b"):
            values(pool.submit(doubling.stage, raw(text), share=True))
    assert doubling.runs == [b"a", b"b", b"c", b"b"]


def test_the_most_urgent_item_begins_first(doubling: Doubling) -> None:
    with StagePool(1) as pool:
        first = hold(pool, doubling)
        futures = [
            pool.submit(doubling.stage, raw("late"), due_ns=20),
            pool.submit(doubling.stage, raw("soon"), due_ns=10),
            pool.submit(doubling.stage, raw("some day")),
            pool.submit(doubling.stage, raw("first"), priority=1),
        ]
        doubling.gate.set()
        wait([first, *futures], TIMEOUT_S)
    assert doubling.runs == [b"0", b"first", b"soon", b"late", b"some day"]


def test_an_item_that_somebody_more_urgent_wants_as_well_moves_up(doubling: Doubling) -> None:
    with StagePool(1) as pool:
        first = hold(pool, doubling)
        futures = [
            pool.submit(doubling.stage, raw("a"), share=True, due_ns=20),
            pool.submit(doubling.stage, raw("b"), due_ns=10),
            pool.submit(doubling.stage, raw("a"), share=True, due_ns=5),
        ]
        assert pool.waiting == 2
        doubling.gate.set()
        wait([first, *futures], TIMEOUT_S)
        assert pool.waiting == 0
    assert doubling.runs == [b"0", b"a", b"b"]


def test_more_than_may_wait_are_refused_but_what_is_there_already_may_be_shared(doubling: Doubling) -> None:
    with StagePool(1, max_waiting=2) as pool:
        first = hold(pool, doubling)
        futures = [pool.submit(doubling.stage, raw(text), share=True) for text in "ab"]
        assert pool.full
        with pytest.raises(QueueFull, match="2 items wait"):
            pool.submit(doubling.stage, raw("c"))
        futures.append(pool.submit(doubling.stage, raw("a"), share=True))
        doubling.gate.set()
        assert [values(future) for future in futures] == [[194.0], [196.0], [194.0]]
        values(first)
        assert not pool.full


def test_a_failure_is_told_to_all_who_share_it_and_is_not_kept(doubling: Doubling) -> None:
    with StagePool(1) as pool:
        first = hold(pool, doubling)
        futures = [pool.submit(doubling.stage, raw(""), share=True) for _ in range(2)]
        doubling.gate.set()
        for future in futures:
            with pytest.raises(KernelFailed, match="ValueError: nothing to double"):
                future.result(TIMEOUT_S)
        with pytest.raises(KernelFailed):
            pool.submit(doubling.stage, raw(""), share=True).result(TIMEOUT_S)
        values(first)
        assert values(pool.submit(doubling.stage, raw("a"))) == [194.0]
        counts = pool.counts()["doubling"]
    assert (counts.runs, counts.failed, counts.shared) == (4, 2, 1)


def test_an_item_whose_time_is_over_is_not_begun(doubling: Doubling) -> None:
    now = [0]
    with StagePool(1, clock=lambda: now[0]) as pool:
        first = hold(pool, doubling)
        expired = pool.submit(doubling.stage, raw("a"), expires_ns=10)
        patient = pool.submit(doubling.stage, raw("b"), share=True, expires_ns=10)
        joined = pool.submit(doubling.stage, raw("b"), share=True, expires_ns=1000)
        now[0] = 11
        doubling.gate.set()
        with pytest.raises(Rejected, match="time was over"):
            expired.result(TIMEOUT_S)
        assert values(patient) == values(joined) == [196.0]
        values(first)
    assert doubling.runs == [b"0", b"b"]


def test_a_cancelled_item_does_not_run_unless_somebody_else_wants_it(doubling: Doubling) -> None:
    with StagePool(1) as pool:
        first = hold(pool, doubling)
        alone = pool.submit(doubling.stage, raw("a"))
        both = [pool.submit(doubling.stage, raw("b"), share=True) for _ in range(2)]
        assert alone.cancel()
        assert both[0].cancel()
        doubling.gate.set()
        assert values(both[1]) == [196.0]
        values(first)
        assert values(pool.submit(doubling.stage, raw("c"))) == [198.0]
    assert doubling.runs == [b"0", b"b", b"c"]


def test_closing_gives_up_what_has_not_begun_and_waits_for_what_runs(doubling: Doubling) -> None:
    pool = StagePool(1)
    first = hold(pool, doubling)
    second = pool.submit(doubling.stage, raw("a"))
    closing = threading.Thread(target=pool.close)
    closing.start()
    with pytest.raises(Closed):
        second.result(TIMEOUT_S)
    assert not first.done()
    doubling.gate.set()
    closing.join(TIMEOUT_S)
    assert values(first) == [96.0]
    pool.close()
    with pytest.raises(Closed):
        pool.submit(doubling.stage, raw("a"))


def test_many_threads_that_want_the_same_get_the_same(doubling: Doubling) -> None:
    results: list[list[float]] = []
    with StagePool(3) as pool:

        def work() -> None:
            results.extend(
                values(pool.submit(doubling.stage, raw(f"{index}"), share=True)) for index in range(50)
            )

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT_S)
        counts = pool.counts()["doubling"]
    assert len(results) == 200
    assert len({tuple(found) for found in results}) == 50
    assert sorted(doubling.runs) == sorted({f"{index}".encode() for index in range(50)})
    assert (counts.runs, counts.shared) == (50, 150)
