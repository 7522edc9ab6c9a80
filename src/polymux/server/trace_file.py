"""A timeline in the Chrome trace format, which opens in Perfetto: named tracks, slices, flow arrows, counters.

References
----------
"Trace Event Format" (the Chromium project): phases M (names), X (slices), s, t, f (flows) and C (counters).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from polymux.core.errors import ConfigError


class Track(NamedTuple):
    """A row of the timeline: a device's number and the row's."""

    process: int
    thread: int


class Span(NamedTuple):
    """A time on a track, CLOCK_MONOTONIC; it takes 1 ns at least, so that something can begin or end inside."""

    track: Track
    start_ns: int
    end_ns: int


class TraceFile:
    """Writes events, from any thread.

    Parameters
    ----------
    path : Path

    Raises
    ------
    ConfigError
        If the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._flows = 0
        try:
            self._file: TextIO = open(path, "w")  # noqa: SIM115, closed by close()
        except OSError as error:
            raise ConfigError(str(path), "trace", str(path), f"cannot be written: {error}") from None
        self._file.write('{"displayTimeUnit":"ns","traceEvents":[\n')

    def name_process(self, process: int, name: str) -> None:
        """Name a device's tracks as a whole."""
        self._name("process_name", Track(process, 0), name)

    def name_track(self, track: Track, name: str) -> None:
        """Name a track; those of one device are sorted by number."""
        self._name("thread_name", track, name)

    def slice(self, span: Span, name: str, category: str, args: Mapping[str, Any]) -> None:
        """Write a slice."""
        duration_us = (span.end_ns - span.start_ns) / 1e3
        self._write("X", span.track, span.start_ns, name=name, cat=category, dur=duration_us, args=args)

    def flow(self, points: list[tuple[Track, int]]) -> None:
        """Write arrows from point to point: tracks and times, each inside a slice, in the order of time."""
        self._flows += 1
        for index, (track, at_ns) in enumerate(points):
            phase = "s" if index == 0 else "f" if index == len(points) - 1 else "t"
            more = {"bp": "e"} if phase == "f" else {}
            self._write(phase, track, at_ns, name="migration", cat="migration", id=self._flows, **more)

    def counter(self, process: int, at_ns: int, name: str, unit: str, value: int) -> None:
        """Write the value that a number has from now on."""
        self._write("C", Track(process, 0), at_ns, name=name, args={unit: value})

    def close(self) -> None:
        """Finish the file."""
        with self._lock:
            self._file.write(json.dumps({"ph": "M", "name": "trace_end", "pid": 0, "tid": 0}) + "\n]}\n")
            self._file.close()

    def _name(self, what: str, track: Track, name: str) -> None:
        event = {"ph": "M", "name": what, "pid": track.process, "tid": track.thread, "args": {"name": name}}
        self._put(event)

    def _write(self, phase: str, track: Track, at_ns: int, **fields: Any) -> None:
        self._put({"ph": phase, "pid": track.process, "tid": track.thread, "ts": at_ns / 1e3, **fields})

    def _put(self, event: Mapping[str, Any]) -> None:
        with self._lock:
            if not self._file.closed:
                self._file.write(json.dumps(event) + ",\n")


class Lanes:
    """As many tracks as it takes for things of one kind that happen at the same time.

    Parameters
    ----------
    file : TraceFile
    first : Track
    name : str
        Of the first track; the others have it with a number.
    """

    def __init__(self, file: TraceFile, first: Track, name: str) -> None:
        self._file = file
        self._first = first
        self._name = name
        self._ends_ns: list[int] = []

    def place(self, start_ns: int, end_ns: int) -> Span:
        """Find a track on which nothing else happens then; what comes in the order of time takes the fewest."""
        end_ns = max(end_ns, start_ns + 1)
        free = (lane for lane, busy_until_ns in enumerate(self._ends_ns) if busy_until_ns <= start_ns)
        lane = next(free, len(self._ends_ns))
        if lane == len(self._ends_ns):
            self._ends_ns.append(0)
            self._file.name_track(self._track(lane), self._name if lane == 0 else f"{self._name} {lane + 1}")
        self._ends_ns[lane] = end_ns
        return Span(self._track(lane), start_ns, end_ns)

    def _track(self, lane: int) -> Track:
        return Track(self._first.process, self._first.thread + lane)
