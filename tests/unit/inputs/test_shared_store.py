from __future__ import annotations

import errno
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from polymux.inputs import Pipeline, SharedStore, StagePool
from polymux.inputs import pool as pool_module
from polymux.inputs.stage import key_of
from tests.unit.inputs.stages import TIMEOUT_S, Doubling, raw

KEY = b"\x01" * 16
RESULTS = (np.arange(6, dtype=np.float32).reshape(2, 3), np.array(7))


@contextmanager
def store_at(folder: Path, capacity_nbytes: int = 1 << 20) -> Iterator[SharedStore]:
    store = SharedStore(folder, capacity_nbytes)
    try:
        yield store
    finally:
        store.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "shared"


@contextmanager
def claiming_process(folder: Path, key: bytes) -> Iterator[int]:
    """Run a process that has claimed a key, and does nothing more."""
    program = (
        "import sys, time; from pathlib import Path; from polymux.inputs import SharedStore\n"
        "store = SharedStore(Path(sys.argv[1])); assert store.claim(bytes.fromhex(sys.argv[2]))\n"
        "print('claimed', flush=True); time.sleep(1000)\n"
    )
    words = [sys.executable, "-c", program, str(folder), key.hex()]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "claimed\n"
            yield process.pid
        finally:
            process.kill()


def test_a_result_is_there_for_every_store_of_the_folder(folder: Path) -> None:
    with store_at(folder) as one, store_at(folder) as other:
        assert other.get(KEY, 2) is None
        mapped = one.put(KEY, RESULTS)
        found = other.get(KEY, 2)
        assert found is not None
        for arrays in (mapped, found):
            assert [array.tolist() for array in arrays] == [array.tolist() for array in RESULTS]
            assert [array.dtype for array in arrays] == [array.dtype for array in RESULTS]
            assert not arrays[0].flags.writeable
        assert other.put(KEY, RESULTS)[0].tolist() == RESULTS[0].tolist()


def test_the_last_one_that_closes_leaves_nothing_and_mapped_results_stay_readable(folder: Path) -> None:
    with store_at(folder) as one, store_at(folder) as other:
        assert one.get(KEY, 2) is None  # from now on it is used
        with store_at(folder) as first:
            (mapped, _) = first.put(KEY, RESULTS)
        assert other.get(KEY, 2) is not None
        assert one.get(KEY, 2) is not None
    assert not folder.exists()
    assert mapped.tolist() == RESULTS[0].tolist()
    with store_at(folder) as again, store_at(folder) as beside:
        assert beside.get(KEY, 2) is None
        assert again.get(KEY, 2) is None
        assert again.claim(KEY)


def test_a_store_that_is_alone_writes_nothing_until_another_one_comes(folder: Path) -> None:
    with store_at(folder) as one:
        for _ in range(3):
            assert one.claim(KEY)
            assert one.put(KEY, RESULTS) is RESULTS
            one.release(KEY)
        assert not (folder / KEY.hex()).exists()
        with store_at(folder) as other:
            assert other.get(KEY, 2) is None
            one.put(KEY, RESULTS)
            assert other.get(KEY, 2) is not None
        assert one.put(b"\x02" * 16, RESULTS) is RESULTS


def test_what_a_killed_process_leaves_goes_with_the_next_one(folder: Path) -> None:
    with claiming_process(folder, KEY) as process:
        os.kill(process, signal.SIGKILL)
        os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
    assert list((folder / ".members").iterdir())
    with store_at(folder) as store:
        assert store.put(KEY, RESULTS) is RESULTS  # it is alone
    assert not folder.exists()


def test_a_claim_is_one_stores_until_it_is_released(folder: Path) -> None:
    with store_at(folder) as one, store_at(folder) as other:
        assert other.get(KEY, 1) is None
        assert one.claim(KEY)
        assert not other.claim(KEY)
        other.release(KEY)
        assert not other.claim(KEY)
        one.release(KEY)
        assert other.claim(KEY)


def test_the_claim_of_a_killed_process_is_free(folder: Path) -> None:
    with store_at(folder) as store:
        with claiming_process(folder, KEY) as process:
            assert not store.claim(KEY)
            os.kill(process, signal.SIGKILL)
            os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
            assert store.claim(KEY)


def test_results_have_a_bound_and_the_oldest_go_first(folder: Path) -> None:
    array = np.zeros(1024, np.float32)
    with store_at(folder, 40 * array.nbytes) as store, store_at(folder) as other:
        other.get(KEY, 1)
        for index in range(200):
            store.put(index.to_bytes(16, "big"), (array,))
            os.utime(folder / index.to_bytes(16, "big").hex(), (index, index))
        there = [index for index in range(200) if store.get(index.to_bytes(16, "big"), 1) is not None]
    assert 30 < len(there) <= 44
    assert there == list(range(200 - len(there), 200))


@pytest.mark.parametrize("obstacle", ["others may read it", "a file", "no folder above"])
def test_where_nothing_can_be_shared_a_warning_says_so_and_work_goes_on(
    folder: Path, obstacle: str, caplog: pytest.LogCaptureFixture
) -> None:
    if obstacle == "others may read it":
        folder.mkdir()
        folder.chmod(0o755)
    elif obstacle == "a file":
        folder.write_text("")
    else:
        folder = folder / "nowhere"
    doubling = Doubling()
    with (
        caplog.at_level(logging.WARNING),
        StagePool(1, store=SharedStore(folder)) as pool,
        Pipeline(doubling.stage, [b"a", b"b"], pool=pool, share=True) as results,
    ):
        assert [array.tolist() for (array,) in results] == [[194], [196]]
    assert len([record for record in caplog.records if "in this process only" in record.message]) == 1


def test_pools_of_several_processes_divide_the_work(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "_LEAST_PATIENCE_NS", TIMEOUT_S * 1_000_000_000)
    items = [bytes([index, 1]) for index in range(60)]
    one, other = Doubling(), Doubling()
    stores = SharedStore(folder), SharedStore(folder)
    for store in stores:
        assert store.get(KEY, 1) is None  # from now on it is used
    with (
        StagePool(1, store=stores[0]) as first,
        StagePool(2, store=stores[1]) as second,
        Pipeline(one.stage, items, pool=first, share=True, ahead=4) as results,
        Pipeline(other.stage, items, pool=second, share=True, ahead=4) as same,
    ):
        for (a,), (b,) in zip(results, same, strict=True):
            assert a.tolist() == b.tolist()
        counts = first.counts()["doubling"], second.counts()["doubling"]
    assert sorted(one.runs + other.runs) == sorted(items)
    assert sum(count.runs for count in counts) == len(items)
    assert sum(count.shared for count in counts) == len(items)


def test_an_item_that_a_stopped_process_has_claimed_is_run_after_a_while(folder: Path) -> None:
    doubling = Doubling()
    with StagePool(1, store=SharedStore(folder)) as pool:
        with claiming_process(folder, key_of(doubling.stage, raw("a"))) as process:
            os.kill(process, signal.SIGSTOP)
            future = pool.submit(doubling.stage, raw("a"), share=True)
            other = pool.submit(doubling.stage, raw("b"), share=True)
            assert other.result(TIMEOUT_S)[0].tolist() == [196]
            assert future.result(TIMEOUT_S)[0].tolist() == [194]
    assert doubling.runs == [b"b", b"a"]


def test_closing_gives_up_what_waits_for_another_process(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "_LEAST_PATIENCE_NS", TIMEOUT_S * 1_000_000_000)
    doubling = Doubling()
    with store_at(folder) as store:
        assert store.claim(key_of(doubling.stage, raw("a")))
        pool = StagePool(1, store=SharedStore(folder))
        future = pool.submit(doubling.stage, raw("a"), share=True)
        pool.submit(doubling.stage, raw("b")).result(TIMEOUT_S)
        pool.close()
        assert type(future.exception(TIMEOUT_S)).__name__ == "Closed"


def test_a_folder_that_is_full_costs_only_the_sharing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with store_at(folder) as one, store_at(folder) as other:
        assert other.get(KEY, 2) is None
        monkeypatch.setattr(np, "save", full)
        assert one.put(KEY, RESULTS) is RESULTS
        assert one.put(KEY, RESULTS) is RESULTS
        assert one.claim(KEY)
        assert other.get(KEY, 2) is None
    assert [record.message for record in caplog.records if "No space left" in record.message]
    assert not folder.exists()
