"""All threads of a process move from cores to cores together."""

from __future__ import annotations

import os
import threading

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: make torch")

from polymux.core.errors import DeviceUnavailable
from polymux.training.affinity import current_cores, move_to_cores


def test_every_thread_moves_and_threads_that_are_started_later_are_there_too() -> None:
    before = current_cores()
    told, leave = threading.Event(), threading.Event()
    threads = [threading.Thread(target=lambda: (told.set(), leave.wait(60))) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        move_to_cores(before[-1:])
        found = {tuple(os.sched_getaffinity(int(task))) for task in os.listdir("/proc/self/task")}
        assert found == {before[-1:]}
        later: list[tuple[int, ...]] = []
        starts = threading.Thread(target=lambda: later.append(current_cores()))
        starts.start()
        starts.join(60)
        assert later == [before[-1:]]
    finally:
        move_to_cores(before)
        leave.set()
        for thread in threads:
            thread.join(60)
    assert current_cores() == before


def test_cores_that_the_process_may_not_use_are_named() -> None:
    before = current_cores()
    with pytest.raises(DeviceUnavailable, match=r"cannot run on cores \[1000\]"):
        move_to_cores([1000])
    assert current_cores() == before
