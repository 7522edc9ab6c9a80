"""Turns a server's status into Prometheus metric families.

References
----------
Prometheus, "Writing exporters" and "Metric and label naming": base units, ``_total`` for counters, one metric ``up``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

Status = Mapping[str, Any]

_log = logging.getLogger(__name__)

_NS = 1e-9
_ACCOUNT = ("application", "device")
_COUNTERS = (
    ("tasks", "polymux_tasks", "Tasks that have ended, with or without success.", 1),
    ("failed", "polymux_failed_tasks", "Tasks that have ended with an error.", 1),
    ("busy_ns", "polymux_device_seconds", "Time for which streams of the device ran tasks.", _NS),
    ("waiting_ns", "polymux_task_waiting_seconds", "Time from submission to start, summed over tasks.", _NS),
    ("migrations", "polymux_migrations", "Queues that came to the device from another one.", 1),
    ("job_ns", "polymux_job_device_seconds", "Time for which jobs held the device.", _NS),
    ("preemptions", "polymux_preemptions", "How often the device was taken from a job.", 1),
)
_DIRECTIONS = {
    "in": "copied_in_nbytes",
    "out": "copied_out_nbytes",
    "between": "copied_between_nbytes",
}


class StatusCollector(Collector):
    """Asks for the status at every scrape.

    Parameters
    ----------
    status : callable
        Returns what ``polymux status --json`` prints; whatever it raises shows as ``polymux_up 0``.
    """

    def __init__(self, status: Callable[[], Status]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """Yield the families."""
        try:
            status = self._status()
            families = list(_families(status))
        except Exception as error:
            _log.warning("the server does not tell its status: %s", error)
            families = []
        yield GaugeMetricFamily(
            "polymux_up", "Whether the Polymux server tells its status.", value=float(bool(families))
        )
        yield from families

    def describe(self) -> list[Metric]:
        """Say nothing before the first scrape, when there may be no server yet."""
        return []


def _families(status: Status) -> Iterator[Metric]:
    server = status["server"]
    yield InfoMetricFamily(
        "polymux_server",
        "Version and policy of the server.",
        value={"version": server["version"], "policy": server["policy"]},
    )
    yield GaugeMetricFamily(
        "polymux_uptime_seconds", "Time since the server's start.", value=server["uptime_ns"] * _NS
    )
    yield from _accounts(status)
    yield from _applications(status)
    yield from _devices(status)
    yield from _streams(status)
    yield from _jobs(status)
    energy = CounterMetricFamily(
        "polymux_energy_joules",
        "Energy since the server's start by a counter of the machine.",
        labels=("meter",),
    )
    for meter in status["energy"]:
        if meter["joules"] is not None:
            energy.add_metric([meter["name"]], meter["joules"])
    yield energy


def _accounts(status: Status) -> Iterator[Metric]:
    for key, name, text, factor in _COUNTERS:
        family = CounterMetricFamily(name, text, labels=_ACCOUNT)
        for account in status["accounts"]:
            family.add_metric([_text(account["application"]), account["device"]], account[key] * factor)
        yield family
    copied = CounterMetricFamily(
        "polymux_copied_bytes",
        "Bytes copied into the device's memory from the host (in) or from another device (between), or out of it.",
        labels=(*_ACCOUNT, "direction"),
    )
    for account in status["accounts"]:
        for direction, key in _DIRECTIONS.items():
            copied.add_metric([_text(account["application"]), account["device"], direction], account[key])
    yield copied


def _applications(status: Status) -> Iterator[Metric]:
    sessions: dict[str, int] = {}
    memory: dict[str, int] = {}
    queues: dict[tuple[str, str], int] = {}
    pending: dict[tuple[str, str], int] = {}
    account_of = {}
    for item in status["applications"]:
        name = account_of[item["session"]] = _text(item["account"])
        sessions[name] = sessions.get(name, 0) + 1
        memory[name] = memory.get(name, 0) + item["device_nbytes"]
    for queue in status["queues"]:
        if queue["session"] in account_of:
            cell = (account_of[queue["session"]], queue["device"] or "none")
            queues[cell] = queues.get(cell, 0) + 1
            pending[cell] = pending.get(cell, 0) + queue["pending"]
    yield _gauge("polymux_sessions", "Connections of the application.", ("application",), sessions)
    yield _gauge(
        "polymux_application_device_memory_bytes",
        "Memory that the application's buffers take on devices with memory of their own.",
        ("application",),
        memory,
    )
    yield _gauge(
        "polymux_queues", "Open task queues, by the device to which they are bound.", _ACCOUNT, queues
    )
    yield _gauge(
        "polymux_pending_tasks", "Tasks that have been submitted and have not ended.", _ACCOUNT, pending
    )


def _devices(status: Status) -> Iterator[Metric]:
    devices = {device["id"]: device for device in status["devices"]}
    info = InfoMetricFamily("polymux_device", "Name and API of the device.", labels=("device",))
    for name, device in devices.items():
        info.add_metric([name], {"name": device["name"], "api": device["api"]})
    yield info
    own = {name: device for name, device in devices.items() if device["memory"] == "own"}
    for metric, text, of, key in (
        ("polymux_device_units", "Compute units of the device.", devices, "units"),
        ("polymux_device_memory_bytes", "Size of the device's own memory.", own, "memory_nbytes"),
        ("polymux_device_memory_used_bytes", "Memory that buffers take on the device.", own, "used_nbytes"),
    ):
        yield _gauge(metric, text, ("device",), {name: device[key] for name, device in of.items()})
    lost = {name: int(device["lost"] is not None) for name, device in devices.items()}
    yield _gauge("polymux_device_lost", "1: the device failed and is not used any more.", ("device",), lost)


def _streams(status: Status) -> Iterator[Metric]:
    labels = ("device", "stream")
    tasks = CounterMetricFamily("polymux_stream_tasks", "Tasks that have ended on the stream.", labels=labels)
    busy = CounterMetricFamily(
        "polymux_stream_busy_seconds", "Time for which the stream ran tasks.", labels=labels
    )
    for device in status["devices"]:
        for stream in device["streams"]:
            tasks.add_metric([device["id"], stream["id"]], stream["tasks"])
            busy.add_metric([device["id"], stream["id"]], stream["busy_ns"] * _NS)
    yield tasks
    yield busy


def _jobs(status: Status) -> Iterator[Metric]:
    account_of = {item["session"]: _text(item["account"]) for item in status["applications"]}
    counts: dict[tuple[str, str], int] = {}
    for job in status["jobs"]:
        cell = (account_of.get(job["session"], "other"), job["state"])
        counts[cell] = counts.get(cell, 0) + 1
    yield _gauge("polymux_jobs", "Jobs that have a lease, by what they do.", ("application", "state"), counts)
    waits = SummaryMetricFamily(
        "polymux_preemption_wait_seconds",
        "Time for which tasks waited for a job to give way.",
        labels=("device",),
    )
    for device in status["devices"]:
        told = device["task_waits"]
        waits.add_metric([device["id"]], told["count"], told["total_ns"] * _NS)
    yield waits
    used = {device["id"]: device["jobs_memory"]["used_nbytes"] for device in status["devices"]}
    yield _gauge(
        "polymux_jobs_memory_bytes", "Device memory that jobs have, as they declared it.", ("device",), used
    )


def _text(name: str) -> str:
    """Make a label of a name that an application gave itself: what UTF-8 cannot write becomes a question mark."""
    return name.encode(errors="replace").decode()


def _gauge(
    name: str,
    text: str,
    labels: tuple[str, ...],
    values: Mapping[str, float] | Mapping[tuple[str, str], float],
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=labels)
    for key, value in values.items():
        family.add_metric([key] if isinstance(key, str) else list(key), value)
    return family
