"""Empty native tasks in a second, and what does not grow with their number."""

from __future__ import annotations

from statistics import median
from time import monotonic_ns

from polymux.bench import cbench
from polymux.bench.bench_server import BenchServer, device_on
from polymux.bench.cores import Cores, choose_cores, pinned_to
from polymux.bench.effort import MIB, Effort
from polymux.bench.report import Progress, Report, Row

PROCESSES, QUEUES_EACH = 4, 2
TARGET_PER_S = 3e6
FLAT_NBYTES = 1 * MIB
EQUAL = 1.1
START_DELAY_NS = 500_000_000
KERNEL = "bench_empty"


def run(effort: Effort, progress: Progress) -> Report:
    """Measure tasks per second through one and through eight queues, and issue cost and memory after many tasks."""
    cores = choose_cores()
    one: list[float] = []
    eight: list[float] = []
    bare: list[float] = []
    with BenchServer([device_on(cores)]) as server:
        progress(f"issue cost and memory after {effort.later:,} tasks")
        _through_one_queue(server, cores, effort.later // 10, None)
        before = server.rss_nbytes()
        long_run = _through_one_queue(server, cores, effort.later, effort.later)
        growth = server.rss_nbytes() - before
        for index in range(effort.rounds):
            progress(f"round {index + 1} of {effort.rounds}")
            options = {"rounds": effort.tasks, "core": cores.client, "peer_core": cores.server}
            bare.append(cbench.measure("stream", **options)["per_s"])
            found = _through_one_queue(server, cores, effort.tasks, None)
            one.append(_tasks_per_s([found]))
            eight.append(_through_eight_queues(server, cores, effort.tasks))
    results = {
        "tasks_per_s_1": median(one),
        "tasks_per_s_8": median(eight),
        "issue_first_ns": long_run["issue_first_ns"],
        "issue_last_ns": long_run["issue_last_ns"],
        "rss_growth_bytes": growth,
        "ring_messages_per_s": median(bare),
    }
    return Report("throughput", "empty native tasks", _rows(results, effort), results, _notes(cores, effort))


def _through_one_queue(server: BenchServer, cores: Cores, tasks: int, later: int | None) -> dict[str, float]:
    options = {
        "socket": server.socket,
        "kernel": KERNEL,
        "rounds": tasks,
        "later": later,
        "core": cores.client,
    }
    return cbench.measure("throughput", **options)


def _through_eight_queues(server: BenchServer, cores: Cores, tasks: int) -> float:
    """Let four processes start at the same moment, on every core but the server's."""
    options = {"socket": server.socket, "kernel": KERNEL, "rounds": tasks // PROCESSES, "queues": QUEUES_EACH}
    start_at_ns = monotonic_ns() + START_DELAY_NS
    with pinned_to(cores.others):
        running = [cbench.start("throughput", start_at_ns=start_at_ns, **options) for _ in range(PROCESSES)]
    return _tasks_per_s([cbench.finish(process) for process in running])


def _tasks_per_s(found: list[dict[str, float]]) -> float:
    spent_ns = max(item["end_ns"] for item in found) - min(item["start_ns"] for item in found)
    return sum(item["tasks"] for item in found) * 1e9 / spent_ns


def _rows(results: dict[str, float], effort: Effort) -> tuple[Row, ...]:
    one, first, last = results["tasks_per_s_1"], results["issue_first_ns"], results["issue_last_ns"]
    ring, growth = results["ring_messages_per_s"], results["rss_growth_bytes"]
    flat, equal = growth < FLAT_NBYTES, last <= EQUAL * first
    later = f"{effort.later / 1e6:g} M tasks later"
    return (
        Row(
            "one queue",
            one,
            "/s",
            ring,
            "bare ring",
            f">= {TARGET_PER_S / 1e6:g} M",
            one >= TARGET_PER_S,
        ),
        Row("8 queues, 4 processes", results["tasks_per_s_8"], "/s", ring, "bare ring"),
        Row(f"issue {later}", last, "ns", first, "first", f"<= {EQUAL} x", equal),
        Row(f"memory {later}", growth / 1024, "KiB", None, "", "< 1 MiB", flat),
    )


def _notes(cores: Cores, effort: Effort) -> tuple[str, ...]:
    return (
        f"from C; {effort.rounds} rounds of {effort.tasks:,} tasks, medians; 1024 tasks in flight in each queue",
        "issue: means of batches, medians of 10,000 issues at first and later in one process",
        cores.note + ("; the four processes to all cores but the server's" if cores.pinned else ""),
    )
