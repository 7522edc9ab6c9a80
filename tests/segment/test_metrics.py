"""`polymux up --metrics`: what Prometheus gets from a server that works, and from one whose scheduler is busy."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from polymux.core.errors import KernelFailed
from tests.segment.server_process import ServerProcess, until

KERNELS = Path(__file__).with_name("kernels_of_operator.py")
HOSTILE = 'x"} 1\n# EOF\nevil{a="'


class Metered(ServerProcess):
    """A server with an endpoint on a free port."""

    def url(self) -> str:
        (line,) = [line for line in self.log.read_text().splitlines() if "metrics at" in line]
        return line.split()[-1]

    def scrape(self) -> dict[tuple[str, frozenset[str]], float]:
        """Values by metric and label values."""
        with urllib.request.urlopen(self.url(), timeout=30) as answer:
            text = answer.read().decode()
        return {
            (sample.name, frozenset(sample.labels.values())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Metered]:
    words = ["--device", "cpu", "--device", "cpu:0", "--metrics", "0", "--kernels", str(KERNELS)]
    with Metered(tmp_path_factory.mktemp("server"), *words) as made:
        until(lambda: "metrics at" in made.log.read_text())
        yield made


def test_what_an_application_does_is_in_the_metrics_while_it_runs_and_when_it_has_ended(
    server: Metered,
) -> None:
    with server.connect("heat[99]") as client, client.queue("work", device="cpu:1") as queue:
        x = queue.array(np.ones(1024, "f8"))
        for _ in range(7):
            queue.submit("double", [x], [x]).wait(60)
        with pytest.raises(KernelFailed):
            queue.submit("raise", [x], [x]).wait(60)
        now = server.scrape()
        cell = frozenset({"heat", "cpu:1"})
        assert now["polymux_up", frozenset()] == 1
        assert now["polymux_tasks_total", cell] == 8
        assert now["polymux_failed_tasks_total", cell] == 1
        assert now["polymux_device_seconds_total", cell] > 0
        assert now["polymux_task_waiting_seconds_total", cell] > 0
        assert now["polymux_copied_bytes_total", cell | {"in"}] == 8192
        assert now["polymux_queues", cell] == 1
        assert now["polymux_pending_tasks", cell] == 0
        assert now["polymux_sessions", frozenset({"heat"})] == 1
        assert now["polymux_device_memory_used_bytes", frozenset({"cpu:1"})] == 8192
    until(lambda: ("polymux_sessions", frozenset({"heat"})) not in server.scrape())
    later = server.scrape()
    assert later["polymux_tasks_total", cell] >= 8
    assert ("polymux_queues", cell) not in later


def test_a_hostile_name_is_a_label_like_any_other(server: Metered) -> None:
    with server.connect(HOSTILE):
        assert server.scrape()["polymux_sessions", frozenset({HOSTILE})] == 1


def test_long_tasks_do_not_hold_up_the_endpoint_nor_it_them(server: Metered) -> None:
    with server.connect("sleeper") as client, client.queue(device="cpu:0") as queue:
        x, y = queue.zeros(4, "f4"), queue.zeros(4, "f4")
        last = [queue.submit("sleep", [x], [y], seconds=0.2) for _ in range(3)][-1]
        scrapes = 0
        while not last.done():
            assert server.scrape()["polymux_up", frozenset()] == 1
            scrapes += 1
        assert scrapes > 3
        last.wait(60)


@pytest.mark.parametrize(
    ("address", "code", "message"),
    [
        ("nonsense", 2, "give [HOST:]PORT"),
        ("127.0.0.1:70000", 2, "port from 0 to 65535"),
        ("192.0.2.1:9464", 1, "cannot listen there"),
    ],
)
def test_a_bad_address_ends_the_command_with_what_would_be_right(
    tmp_path: Path, address: str, code: int, message: str
) -> None:
    words = [sys.executable, "-m", "polymux.cli", "up", "--socket", str(tmp_path / "s"), "--device", "cpu"]
    ended = subprocess.run(
        [*words, "--metrics", address], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == code
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_configuration_file_has_the_address_as_well(tmp_path: Path) -> None:
    config = tmp_path / "polymux.toml"
    config.write_text('metrics = "127.0.0.1:0"\ndevices = ["cpu"]\n')
    with Metered(tmp_path, "--config", str(config)) as server:
        until(lambda: "metrics at" in server.log.read_text())
        assert server.scrape()["polymux_up", frozenset()] == 1
