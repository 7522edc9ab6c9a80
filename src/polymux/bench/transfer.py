"""From the application's data into a kernel's hands, against the same kernel called in the process."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from time import perf_counter_ns
from typing import Any

import numpy as np
import numpy.typing as npt

import polymux
from polymux.bench.bench_server import KERNEL_LIBRARY, BenchServer, device_on
from polymux.bench.cores import choose_cores, pinned_to
from polymux.bench.effort import MIB, Effort
from polymux.bench.report import Progress, Report, Row
from polymux.core.errors import PolymuxError
from polymux.segment import call_native

SIZES = tuple(mib * MIB for mib in (1, 4, 16, 64, 256, 1024))
SET_NBYTES = 64 * MIB
"""One round goes through at least so many bytes of buffers, so that none of them stays in a cache."""
ROUNDS_TIMES = 2
AWAKE_NS = 5_000_000
"""How long empty tasks keep the other side awake before a measurement."""
KERNEL = "bench_sum"
READ, WRITE = 1, 2
TARGET = 1.05

Words = npt.NDArray[np.uint64]


def run(effort: Effort, progress: Progress) -> Report:
    """Measure how long a kernel that reads everything takes: submitted and waited for, and called directly."""
    cores = choose_cores()
    sizes = [nbytes for nbytes in SIZES if nbytes <= effort.largest_nbytes]
    halves = []
    for turn in (cores, cores.swapped()):
        with BenchServer([device_on(turn)]) as server, pinned_to({turn.client}):
            half = []
            for nbytes in sizes:
                progress(f"{nbytes // MIB} MiB")
                half.append(_measure(server.socket, nbytes, effort.rounds))
            halves.append(half)
    results = [
        _together(nbytes, *pair) for nbytes, pair in zip(sizes, zip(*halves, strict=True), strict=True)
    ]
    rows = []
    for item in results:
        met, target = item["ratio"] <= TARGET, f"<= {TARGET} x"
        size = f"{item['nbytes'] // MIB} MiB"
        rows.append(Row(size, item["polymux_ms"], "ms", item["in_process_ms"], "call", target, met))
        rows.append(Row("  with a copy", item["copied_ms"], "ms", item["in_process_ms"], "call"))
    notes = (
        "the kernel sums the buffer, which the application has just written where the kernel reads it",
        "with a copy: the application had the data in an array of its own and copies it over first",
        f"both sides are awake: {AWAKE_NS // 1_000_000} ms of empty tasks come first (`roundtrip` measures waking up)",
        f"the best of {effort.rounds * ROUNDS_TIMES} rounds after a warm-up, taking turns, each over at least"
        f" {SET_NBYTES // MIB} MiB of buffers: who else uses the memory only makes it slower",
        f"{cores.note}, and once more the other way round: the mean of both",
    )
    return Report("transfer", "application memory into a kernel's hands", tuple(rows), results, notes)


def _measure(socket: str, nbytes: int, rounds: int) -> dict[str, float]:
    count, words = max(1, SET_NBYTES // nbytes), nbytes // 8
    arrays = [np.empty(words, np.uint64) for _ in range(count)]
    segment_nbytes = count * nbytes + 256 * MIB
    connection = polymux.connect(socket, name="bench", segment_nbytes=segment_nbytes, start=False)
    with connection as client, client.queue() as queue:
        buffers = [queue.empty((words,), "u8") for _ in range(count)]
        views = [buffer.numpy() for buffer in buffers]
        sums = queue.zeros((1,), "u8")
        total = sums.numpy()
        in_process = _InProcess()

        def submit(buffer: Any) -> None:
            queue.submit(KERNEL, [buffer], [sums]).wait()

        def wake() -> None:
            end = perf_counter_ns() + AWAKE_NS
            while perf_counter_ns() < end:
                queue.submit("noop").wait()

        def copy_and_submit(pair: tuple[Any, Words]) -> None:
            np.copyto(views[pair[0]], pair[1])
            submit(buffers[pair[0]])

        ways: dict[str, tuple[list[Words], Iterable[Any], Callable[[Any], None]]] = {
            "in_process_ms": (arrays, arrays, lambda array: in_process(array, total)),
            "polymux_ms": (views, buffers, submit),
            "copied_ms": (arrays, list(enumerate(arrays)), copy_and_submit),
        }
        found: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(rounds * ROUNDS_TIMES + 1):
            for name, (data, items, hand_over) in ways.items():
                spent = _timed(data, items, hand_over, wake, total, 7 * turn + len(name)) / count
                if turn > 0:  # the first round touches the pages
                    found[name].append(spent)
    return {name: min(times) for name, times in found.items()}


def _together(nbytes: int, *halves: dict[str, float]) -> dict[str, Any]:
    """Average what was measured with each side on either core: one can be slower than the other."""
    mean = {name: sum(half[name] for half in halves) / len(halves) for name in halves[0]}
    return {"nbytes": nbytes, "ratio": mean["polymux_ms"] / mean["in_process_ms"], **mean}


def _timed(
    data: list[Words],
    items: Iterable[Any],
    hand_over: Callable[[Any], None],
    wake: Callable[[], None],
    total: Words,
    value: int,
) -> float:
    """Write fresh data, then hand all of it to the kernel; return the milliseconds of the second part.

    While the application writes, the server's core sleeps, and it is slow for a while after it wakes up; the
    application's is warm. So both are awake before the clock starts.
    """
    for array in data:
        array.fill(value)
    wake()
    total[0] = 0
    start = perf_counter_ns()
    for item in items:
        hand_over(item)
    spent = perf_counter_ns() - start
    if total[0] != value * data[0].size:
        raise PolymuxError(f"bench_sum of {data[0].size} times {value} is {total[0]}")
    return spent / 1e6


class _InProcess:
    """The kernel's own function, called here, on arrays of this process."""

    def __init__(self) -> None:
        function = ctypes.CDLL(str(KERNEL_LIBRARY)).bench_sum
        self._address = ctypes.cast(function, ctypes.c_void_p).value or 0

    def __call__(self, data: Words, total: Words) -> None:
        status, message = call_native(self._address, [data, total], [READ, WRITE], b"", 1)
        if status != 0:
            raise PolymuxError(f"bench_sum: {message}")
