"""A server's status as Prometheus metrics, read back with the library's own parsers."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse_text

from polymux.core.errors import ServerGone
from polymux.metrics.exposition import Metrics
from tests.unit.metrics.states import account, state

OPEN = "application/openmetrics-text; version=1.0.0"
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples(status: Any, accept: str | None = None) -> Samples:
    exposition = Metrics(status).expose(accept)
    parse = parse_open if exposition.content_type.startswith("application/openmetrics-text") else parse_text
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parse(exposition.text.decode())
        for sample in family.samples
    }


def value(found: Samples, name: str, **labels: str) -> float:
    return found[name, frozenset(labels.items())]


@pytest.mark.parametrize("accept", [None, "text/plain", OPEN])
def test_every_number_of_the_accounts_is_a_metric_in_base_units(accept: str | None) -> None:
    found = samples(state, accept)
    heat = {"application": "heat", "device": "cpu:0"}
    assert value(found, "polymux_up") == 1
    assert value(found, "polymux_uptime_seconds") == 10
    assert value(found, "polymux_tasks_total", **heat) == 100
    assert value(found, "polymux_failed_tasks_total", **heat) == 1
    assert value(found, "polymux_device_seconds_total", **heat) == 2
    assert value(found, "polymux_task_waiting_seconds_total", **heat) == 0.5
    away = {"application": "heat", "device": "opencl:0"}
    assert value(found, "polymux_migrations_total", **away) == 3
    assert value(found, "polymux_copied_bytes_total", **away, direction="in") == 4096
    assert value(found, "polymux_copied_bytes_total", **away, direction="out") == 100
    other = {"application": "other", "device": "cpu:0"}
    assert value(found, "polymux_copied_bytes_total", **other, direction="between") == 10


def test_jobs_are_counted_and_how_long_tasks_waited_for_them() -> None:
    found = samples(state)
    away = {"application": "heat", "device": "opencl:0"}
    assert value(found, "polymux_job_device_seconds_total", **away) == 7
    assert value(found, "polymux_preemptions_total", **away) == 9
    assert value(found, "polymux_jobs", application="heat", state="runs") == 1
    assert value(found, "polymux_jobs", application="heat", state="waits") == 2
    assert value(found, "polymux_preemption_wait_seconds_count", device="cpu:0") == 4
    assert value(found, "polymux_preemption_wait_seconds_sum", device="cpu:0") == 0.002


def test_energy_is_counted_by_meter_and_one_that_cannot_be_read_has_no_number() -> None:
    found = samples(state)
    assert value(found, "polymux_energy_joules_total", meter="package-0") == 12.5
    assert len([name for name, _ in found if name == "polymux_energy_joules_total"]) == 1


def test_what_is_there_now_is_a_gauge_by_application_and_device() -> None:
    found = samples(state)
    assert value(found, "polymux_sessions", application="heat") == 2
    assert value(found, "polymux_application_device_memory_bytes", application="heat") == 30
    assert value(found, "polymux_queues", application="heat", device="opencl:0") == 2
    assert value(found, "polymux_pending_tasks", application="heat", device="opencl:0") == 7
    assert value(found, "polymux_pending_tasks", application="heat", device="none") == 1
    assert value(found, "polymux_device_memory_used_bytes", device="opencl:0") == 1 << 20
    assert ("polymux_device_memory_bytes", frozenset({("device", "cpu:0")})) not in found
    assert value(found, "polymux_device_lost", device="opencl:0") == 1
    assert value(found, "polymux_device_lost", device="cpu:0") == 0
    assert value(found, "polymux_stream_tasks_total", device="cpu:0", stream="cpu:0/0") == 7
    assert value(found, "polymux_stream_busy_seconds_total", device="cpu:0", stream="cpu:0/0") == 0.5


def test_every_metric_has_the_prefix_a_type_and_a_help_text_and_only_bounded_labels() -> None:
    bounded = {
        "application",
        "device",
        "stream",
        "direction",
        "version",
        "policy",
        "name",
        "api",
        "meter",
        "state",
    }
    families = list(parse_text(Metrics(state).expose(None).text.decode()))
    assert len(families) > 15
    for family in families:
        assert family.name.startswith("polymux_")
        assert family.documentation.endswith(".")
        assert family.type in ("counter", "gauge", "summary")
        assert not family.name.endswith(("_ns", "_nbytes"))
        for sample in family.samples:
            assert set(sample.labels) <= bounded


@pytest.mark.parametrize(
    "name", ['a"b', "a\nb", "a\\b", '{x="1"} 5\n# TYPE evil counter', "名前", "\udcff", ""]
)
def test_no_name_of_an_application_breaks_the_text(name: str) -> None:
    def status() -> Any:
        return state() | {"accounts": [account(name, "cpu:0", tasks=4)]}

    found = samples(status)
    ((labels, number),) = [
        (key[1], number) for key, number in found.items() if key[0] == "polymux_tasks_total"
    ]
    assert number == 4
    shown = dict(labels)["application"]
    assert shown == name.encode(errors="replace").decode()


@pytest.mark.parametrize("error", [ServerGone("gone"), TimeoutError(), KeyError("accounts")])
def test_a_server_that_does_not_answer_is_down_and_no_error(error: Exception) -> None:
    def status() -> Any:
        raise error

    assert samples(status) == {("polymux_up", frozenset()): 0}


def test_the_metrics_of_the_process_come_along_when_they_are_asked_for() -> None:
    text = Metrics(state, process=True).expose(None).text.decode()
    assert "process_resident_memory_bytes" in text
