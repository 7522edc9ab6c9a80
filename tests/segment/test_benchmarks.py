"""Every benchmark runs against a server of its own and prints what it promises. Nothing here judges a time."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from polymux.bench import BENCHMARKS, cbench
from polymux.bench.bench_server import BenchServer, device_on
from polymux.bench.cores import choose_cores
from polymux.core.errors import PolymuxError

KEYS = {
    "issue": {"python_cycles", "c_cycles"},
    "roundtrip": {"native_us", "python_us", "pingpong_us", "native_slept_us", "futex_us"},
    "transfer": {"nbytes", "ratio"},
    "apps": {"app", "native_s", "polymux_s", "ratio", "setup", "queues", "nbytes"},
    "throughput": {"tasks_per_s_1", "tasks_per_s_8", "issue_first_ns", "issue_last_ns", "rss_growth_bytes"},
    "migrate": {"nbytes", "gap_ms", "bare_copy_ms", "ratio", "from", "to", "data", "moved_nbytes", "task_ms"},
    "elastic": {
        "nbytes",
        "high_ratio",
        "low_ratio",
        "high_s",
        "high_alone_s",
        "low_s",
        "low_bound_s",
        "simulated",
    },
    "simulate": {
        "policy",
        "requests_per_s",
        "policy_part",
        "requests",
        "mean_batch",
        "utilisation",
        "times_faster",
    },
    "dstack": {"figure", "paper", "expected", "computed", "unit", "policy", "target", "met"},
    "decide": {
        "policy",
        "models",
        "request_us",
        "batch_us",
        "admit_us",
        "admit_p99_us",
        "decide_us",
        "decide_p99_us",
    },
    "cluster": {
        "models",
        "devices",
        "simulate_s",
        "simulated_per_s",
        "plan_s",
        "planned_devices",
        "bound_devices",
    },
    "coexec": {"mape_pct", "rows"},
    "reuse": {"case", "gain", "items_per_s", "baseline"},
    "switchflow": {
        "setup",
        "policy",
        "p99_ms",
        "below",
        "train_fraction",
        "jobs",
        "failures",
        "peak_nbytes",
        "target",
        "met",
    },
    "training": {"memory", "batch", "steps", "migrations", "migrations_per_s", "slowdown", "accuracy"},
}
DIFFERENCES = {
    "rss_growth_bytes",
    "migration_us",
    "gap_ms",
    "largest_gap_ms",
    "ratio",
    "moved_nbytes",
    "migrations",
    "gain",
    "unmanaged_gain",
    "target",
    "expected",
    "computed",
    "met",
    "p99_ms",
    "below",
    "train_fraction",
    "jobs",
    "failures",
}
"""Which may as well be negative or nothing."""
CHOSEN = {"apps": ("--app", "pathfinder", "--size", "1MiB")}
"""What a benchmark is told to measure, where all of it takes long."""
OF_MINUTES = {"policies", "preempt"}
"""Which take minutes however little they repeat, or need PyTorch; a part of each has a test of its own."""


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "polymux.cli", "bench", *arguments]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=110)


@pytest.mark.parametrize("name", [name for name in BENCHMARKS if name not in OF_MINUTES])
def test_a_benchmark_prints_its_keys_as_json_and_nothing_else(name: str) -> None:
    done = bench(name, "--quick", "--json", *CHOSEN.get(name, ()))
    assert done.returncode == 0, done.stderr
    results: Any = json.loads(done.stdout)
    items = results if isinstance(results, list) else [results]
    assert items
    for item in items:
        assert KEYS[name] <= item.keys()
        figures = {key: value for key, value in item.items() if not isinstance(value, str | bool | list)}
        assert all(value > 0 for key, value in figures.items() if key not in DIFFERENCES)


def test_a_benchmark_prints_a_table_with_targets_and_verdicts() -> None:
    done = bench("issue", "--quick")
    assert done.returncode == 0, done.stderr
    assert "issue: cycles for one task issue" in done.stdout
    rows = [line for line in done.stdout.splitlines() if "from Python" in line or "from C" in line]
    assert [("met" in row) != ("missed" in row) for row in rows] == [True, True]


def test_an_unknown_benchmark_is_refused_with_the_names_of_all() -> None:
    done = bench("speed")
    assert done.returncode == 2
    assert all(name in done.stderr for name in BENCHMARKS)


def test_applications_are_measured_on_one_queue_and_on_the_set_ups_with_several() -> None:
    done = bench("apps", "--quick", "--json", *CHOSEN["apps"])
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert {item["app"] for item in results} == {"pathfinder"}
    assert {item["nbytes"] for item in results} == {1 << 20}
    assert {item["queues"] for item in results} == {1, 2, 4}
    assert all(item["ratio"] == pytest.approx(item["polymux_s"] / item["native_s"]) for item in results)
    assert {"cpu, 1 queue", "cpu, 4 streams", "2 halves of the cores"} <= {item["setup"] for item in results}


def test_moves_are_measured_each_way_between_the_memories_with_what_they_copied() -> None:
    done = bench("migrate", "--quick", "--json")
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    ways = {(item["from"], item["to"]) for item in results}
    assert {("cpu:0", "cpu:1"), ("cpu:1", "cpu:0"), ("host", "cpu"), ("cpu", "host")} <= ways
    for item in results:
        if item["data"] == "written":
            assert item["moved_nbytes"] == item["nbytes"]
        assert item["ratio"] == pytest.approx(item["gap_ms"] / item["bare_copy_ms"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["apps", "--app", "coldspot"], "pathfinder"),
        (["apps", "--size", "lots"], "'lots'"),
        (["apps", "--size", "1KiB"], "give 1MiB to 64GiB"),
        (["issue", "--app", "pathfinder"], "--app and --size choose for apps, not for issue"),
        (["preempt", "--model", "vgg"], "resnet50"),
        (["preempt", "--load", "1.5"], "give 0.01 to 0.9"),
        (["apps", "--load", "0.15"], "--model and --load choose for preempt, not for apps"),
    ],
)
def test_a_choice_that_cannot_be_is_refused(arguments: list[str], words: str) -> None:
    done = bench(*arguments, "--quick")
    assert done.returncode == 2
    assert words in done.stderr


def test_the_server_of_a_benchmark_ends_with_it() -> None:
    with BenchServer([device_on(choose_cores())]) as server:
        assert server.rss_nbytes() > 0
        folder = Path(server.socket).parent
    assert not Path(f"/proc/{server.pid}").exists()
    assert not folder.exists()


def test_a_server_that_does_not_start_is_reported_with_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polymux.bench.bench_server.KERNELS", (Path("/nowhere/kernels.toml"),))
    with (
        pytest.raises(PolymuxError, match=r"did not start.*/nowhere/kernels\.toml"),
        BenchServer([device_on(choose_cores())]),
    ):
        pass


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["speed"], "no measurement is called speed"),
        (["ring", "--rounds", "many"], "--rounds many is not a whole number"),
        (["issue", "--batch", "64", "--capacity", "64"], "--batch must be smaller than --capacity"),
        (["issue", "--socket", "/nowhere/socket"], "NO_SERVER"),
    ],
)
def test_the_c_side_says_what_is_wrong_with_its_arguments(arguments: list[str], words: str) -> None:
    done = subprocess.run([str(cbench.EXECUTABLE), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert words in done.stderr


def test_the_failure_of_the_c_side_keeps_its_words() -> None:
    with pytest.raises(PolymuxError, match="no Polymux server at /nowhere/socket"):
        cbench.measure("roundtrip", socket="/nowhere/socket")


def test_a_c_side_that_was_not_built_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cbench, "EXECUTABLE", Path("/nowhere/polymux-cbench"))
    with pytest.raises(PolymuxError, match="make build"):
        cbench.measure("ring")


def test_a_benchmark_that_is_told_to_end_ends_its_server() -> None:
    words = [sys.executable, "-m", "polymux.cli", "bench", "throughput"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        deadline = time.monotonic() + 60
        while not (servers := [pid for pid in children.read_text().split() if is_server(pid)]):
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.02)
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM
    assert not any(is_server(pid) for pid in servers)


def is_server(pid: str) -> bool:
    try:
        return b"\0up\0" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
