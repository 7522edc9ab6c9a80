"""A worker may be asked for its statistics at any moment."""

from __future__ import annotations

import threading

from polymux.segment import Segment, Worker

ROUNDS = 3000


def test_statistics_can_be_read_while_queues_come_and_go() -> None:
    worker = Worker(0, None, spin_ns=0)
    segment = Segment(32 << 20)
    offset, capacity = segment.data_offset, 16
    index = segment.open_queue(offset, capacity)
    released = threading.Semaphore(0)
    ending = threading.Event()

    def take() -> None:
        while not ending.is_set():
            if worker.next()[0] == "released":
                released.release()

    def read() -> None:
        while not ending.is_set():
            worker.stats()

    threads = [threading.Thread(target=target, daemon=True) for target in (take, read)]
    for thread in threads:
        thread.start()
    for _ in range(ROUNDS):
        worker.bind(segment, index, "1.0")
        worker.unbind("1.0")
        assert released.acquire(timeout=30), "the worker no longer lets go of its queue"
    ending.set()
    worker.wake()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def test_a_wake_up_is_told_even_when_a_change_comes_at_the_same_moment() -> None:
    worker = Worker(0, None, spin_ns=0)
    waker = threading.Thread(target=lambda: [worker.unbind("nobody") or worker.wake() for _ in range(20_000)])
    waker.start()
    while waker.is_alive():
        worker.next(block=False)
    worker.wake()
    worker.unbind("nobody")
    kinds = [worker.next(block=False)[0] for _ in range(4)]
    assert "woken" in kinds
