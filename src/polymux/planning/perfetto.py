"""Writes batches as a trace for https://ui.perfetto.dev: a process per policy and device, tracks for what runs at once.

References
----------
Trace Event Format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

from polymux.core.ids import DeviceId
from polymux.planning.run import PolicyRun
from polymux.sim.serving.outcome import BatchSpan


def write_trace(path: Path, runs: Sequence[PolicyRun]) -> int:
    """Write the batches of these runs.

    Returns
    -------
    int
        How many batches were written.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    batches = 0
    with path.open("w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
        separator = ""
        for event in _events(runs):
            batches += event["ph"] == "X"
            file.write(separator + json.dumps(event, separators=(",", ":")))
            separator = ",\n"
        file.write("\n]}\n")
    return batches


def _events(runs: Sequence[PolicyRun]) -> Iterator[dict[str, Any]]:
    process = 0
    for run in runs:
        by_device: dict[DeviceId, list[BatchSpan]] = {device: [] for device in run.outcome.devices}
        for span in run.outcome.spans:
            by_device[span.device].append(span)
        for device, spans in by_device.items():
            process += 1
            yield _named("process_name", process, 0, f"{run.policy} on {device}")
            yield from _of_device(process, sorted(spans, key=lambda span: (span.start_ns, span.batch)))


def _of_device(process: int, spans: Sequence[BatchSpan]) -> Iterator[dict[str, Any]]:
    """Each batch on the first track that is free then, and how many units are in use."""
    free: list[int] = []
    busy: list[tuple[int, int, int]] = []
    tracks = used = 0
    for span in spans:
        while busy and busy[0][0] <= span.start_ns:
            end_ns, track, units = heappop(busy)
            heappush(free, track)
            used -= units
            yield _used(process, end_ns, used)
        if not free:
            tracks += 1
            free.append(tracks)
            yield _named("thread_name", process, tracks, f"batch {tracks}")
        track = heappop(free)
        heappush(busy, (span.end_ns, track, span.units))
        used += span.units
        yield _used(process, span.start_ns, used)
        kind = "failed" if span.failed else "batch"
        yield {
            "ph": "X", "name": str(span.model), "cat": kind, "pid": process, "tid": track,
            "ts": span.start_ns / 1e3, "dur": (span.end_ns - span.start_ns) / 1e3,
            "args": {"batch": span.batch, "units": span.units, "requests": span.requests, "items": span.items},
        }  # fmt: skip
    while busy:
        end_ns, _, units = heappop(busy)
        used -= units
        yield _used(process, end_ns, used)


def _used(process: int, at_ns: int, units: int) -> dict[str, Any]:
    return {"ph": "C", "name": "units in use", "pid": process, "ts": at_ns / 1e3, "args": {"units": units}}


def _named(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}
