"""Two applications, each a process that keeps its ring full, get tasks of one stream done in proportion to their
weights."""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing.process import BaseProcess

import pytest

from polymux.segment import Worker
from tests.segment.server_process import until
from tests.unit.segment.ring import Rings

FORK = multiprocessing.get_context("fork")
CAPACITY = 256
TASK_S = 0.001


def keep_full(rings: Rings, priority: int) -> None:
    """Submit as fast as tasks end."""
    submitted = 0
    while True:
        if submitted - rings.completed() < CAPACITY:
            submitted = rings.submit(priority=priority)
        else:
            time.sleep(TASK_S / 4)


class Stream:
    """A worker in this process, with applications as children."""

    def __init__(self) -> None:
        self.worker = Worker(0, None, spin_ns=0)
        self.done: Counter[str] = Counter()
        self._children: list[BaseProcess] = []
        self._rings: dict[str, Rings] = {}

    def application(self, name: str, weight: int, priority: int = 0) -> None:
        """Start an application."""
        rings = self._rings[name] = Rings(1, CAPACITY)
        child = FORK.Process(target=keep_full, args=(rings, priority), daemon=True)
        child.start()
        self._children.append(child)
        until(lambda: rings.segment.pending(rings.indices[0]) == CAPACITY)
        self.worker.bind(rings.segment, rings.indices[0], name, 0, True, len(self._children), weight)

    def run(self, n: int) -> Counter[str]:
        """Complete n tasks; how many of each application."""
        done: Counter[str] = Counter()
        while done.total() < n:
            kind, task = self.worker.next(block=False)
            time.sleep(TASK_S)
            if kind == "task":
                self.worker.complete(task, 0)
                done[task.queue] += 1
        return done

    def kill(self) -> None:
        """End all applications."""
        for child in self._children:
            child.kill()
            child.join()


@pytest.fixture
def stream() -> Iterator[Stream]:
    made = Stream()
    yield made
    made.kill()


def test_two_applications_get_tasks_done_by_their_weights(stream: Stream) -> None:
    stream.application("normal", 100)
    stream.application("heavy", 300)
    done = stream.run(400)
    assert 2.2 < done["heavy"] / done["normal"] < 4.0, done


def test_a_weight_changes_while_both_run(stream: Stream) -> None:
    stream.application("one", 100)
    stream.application("other", 100)
    stream.worker.weigh("other", 400)
    done = stream.run(300)
    assert 2.8 < done["other"] / done["one"] < 5.5, done


def test_an_application_that_comes_late_gets_no_credit_for_the_time_before(stream: Stream) -> None:
    stream.application("early", 100)
    assert stream.run(200) == {"early": 200}
    stream.application("late", 100)
    done = stream.run(200)
    assert 0.6 < done["late"] / done["early"] < 1.6, done


def test_priority_is_strict_and_a_killed_application_leaves_the_stream_to_the_others(stream: Stream) -> None:
    stream.application("low", 10_000)
    stream.application("high", 1, priority=1)
    done = stream.run(50)
    assert done["low"] <= 1, done
    stream.kill()
    assert stream.run(CAPACITY // 2)["high"] == CAPACITY // 2
