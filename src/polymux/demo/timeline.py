"""Who ran where and when, from the trace that ``polymux up --trace`` writes (Chrome trace format)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from polymux.demo.failure import DemoFailed
from polymux.demo.heat import APPLICATION
from polymux.demo.message import Answer
from polymux.demo.models import MODELS

__all__ = ["COPIES", "OTHER", "Arrow", "Lane", "Request", "Slice", "Timeline", "read_timeline"]

COPIES = "copies"
OTHER = "other"
_COPIES_FROM = 1000  # threads of the trace from here on are copies
_MIGRATIONS_FROM = 3000  # and from here on migrations, which are shown as arrows between streams


@dataclass(frozen=True, slots=True)
class Lane:
    """A line of the picture: a stream of a device, or the copies to and from its memory.

    Attributes
    ----------
    key : (int, int)
        Process and thread in the trace.
    device, name : str
    """

    key: tuple[int, int]
    device: str
    name: str


@dataclass(frozen=True, slots=True)
class Slice:
    """A task or a copy.

    Attributes
    ----------
    lane : int
        Index of its lane.
    start_s, end_s : float
        Since the beginning of the load.
    owner : str
        The application or model that it belongs to, or `COPIES` or `OTHER`.
    name : str
        Its kernel, or the direction of a copy.
    """

    lane: int
    start_s: float
    end_s: float
    owner: str
    name: str


@dataclass(frozen=True, slots=True)
class Arrow:
    """A queue that moves from one lane to another; `owner` is the application or model that it belongs to."""

    at_s: float
    source: int
    target: int
    owner: str


@dataclass(frozen=True, slots=True)
class Request:
    """A request: when its answer had come, and how long that took."""

    model: str
    end_s: float
    latency_ms: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """A run of the demo as a picture shows it; times in s since the beginning of the load."""

    lanes: tuple[Lane, ...]
    slices: tuple[Slice, ...]
    arrows: tuple[Arrow, ...]
    requests: tuple[Request, ...]
    length_s: float

    @property
    def migrations(self) -> list[Arrow]:
        """The moves of the numerical application, which are done on command."""
        return [arrow for arrow in self.arrows if arrow.owner == APPLICATION]

    def places(self, kernel: str) -> dict[str, int]:
        """Count the tasks of a kernel on each device."""
        found: dict[str, int] = {}
        for piece in self.slices:
            if piece.name == kernel:
                device = self.lanes[piece.lane].device
                found[device] = found.get(device, 0) + 1
        return dict(sorted(found.items()))

    def owners(self) -> list[str]:
        """Return the owners that occur, in the order of a legend."""
        found = {piece.owner for piece in self.slices}
        return [owner for owner in (APPLICATION, *MODELS, COPIES, OTHER) if owner in found]


def read_timeline(
    trace: Path, begin_ns: int, end_ns: int, applications: Mapping[str, str], answers: Sequence[Answer]
) -> Timeline:
    """Read the trace of a run.

    Parameters
    ----------
    trace : Path
        Chrome trace; its times are of the machine's monotonic clock.
    begin_ns, end_ns : int
        Of the load; what lies outside is left out.
    applications : mapping of str to str
        Application of each queue, by the queue's id.
    answers : sequence of Answer

    Raises
    ------
    DemoFailed
        When the trace is damaged.
    """
    try:
        events: list[dict[str, Any]] = json.loads(trace.read_text())["traceEvents"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DemoFailed(f"the trace {trace} cannot be read: {error}") from error
    lanes = _lanes(events)
    reader = _Reader({lane.key: index for index, lane in enumerate(lanes)}, begin_ns, end_ns, applications)
    slices, arrows = reader.slices(events), reader.arrows(events)
    requests = tuple(
        Request(answer.model, (answer.end_ns - begin_ns) / 1e9, (answer.end_ns - answer.start_ns) / 1e6)
        for answer in answers
        if not answer.failed
    )
    used = sorted({piece.lane for piece in slices} | {lane for arrow in arrows for lane in _ends(arrow)})
    place = {lane: index for index, lane in enumerate(used)}
    return Timeline(
        tuple(lanes[lane] for lane in used),
        tuple(replace(piece, lane=place[piece.lane]) for piece in slices),
        tuple(replace(arrow, source=place[arrow.source], target=place[arrow.target]) for arrow in arrows),
        requests,
        (end_ns - begin_ns) / 1e9,
    )


class _Reader:
    def __init__(
        self,
        lane_of: Mapping[tuple[int, int], int],
        begin_ns: int,
        end_ns: int,
        applications: Mapping[str, str],
    ) -> None:
        self._lane_of = lane_of
        self._begin_ns = begin_ns
        self._length_s = (end_ns - begin_ns) / 1e9
        self._applications = applications

    def slices(self, events: Sequence[Mapping[str, Any]]) -> list[Slice]:
        found = []
        for event in events:
            if event["ph"] != "X" or event["cat"] not in ("task", "transfer"):
                continue
            start_s = self._seconds(event["ts"])
            end_s = start_s + event["dur"] / 1e6
            if end_s >= 0 and start_s <= self._length_s:
                found.append(Slice(self._lane(event), start_s, end_s, self._owner(event), event["name"]))
        return found

    def arrows(self, events: Sequence[Mapping[str, Any]]) -> list[Arrow]:
        streams = {
            str(event["args"]["name"]).removeprefix("stream "): self._lane(event)
            for event in events
            if event["ph"] == "M" and event["name"] == "thread_name" and _lane_key(event) in self._lane_of
        }
        found = []
        for event in events:
            if event["ph"] != "X" or event["cat"] != "migration":
                continue
            at_s = self._seconds(event["ts"] + event["dur"])
            if 0 <= at_s <= self._length_s:
                args = event["args"]
                queue = str(args["name"])
                owner = _model(queue) or (APPLICATION if queue == APPLICATION else OTHER)
                found.append(Arrow(at_s, streams[args["from"]], streams[args["to"]], owner))
        return found

    def _owner(self, event: Mapping[str, Any]) -> str:
        if event["cat"] == "transfer":
            return COPIES
        model = _model(event["name"])
        mine = self._applications.get(event["args"]["queue"]) == APPLICATION
        return model or (APPLICATION if mine else OTHER)

    def _lane(self, event: Mapping[str, Any]) -> int:
        return self._lane_of[_lane_key(event)]

    def _seconds(self, ts_us: float) -> float:
        return (ts_us * 1e3 - self._begin_ns) / 1e9


def _lanes(events: Sequence[Mapping[str, Any]]) -> list[Lane]:
    """Return the lanes in the order of the devices, streams before copies."""
    devices = {
        event["pid"]: event["args"]["name"]
        for event in events
        if event["ph"] == "M" and event["name"] == "process_name"
    }
    threads = {
        _lane_key(event): COPIES if _is_copies(event) else str(event["args"]["name"])
        for event in events
        if event["ph"] == "M" and event["name"] == "thread_name" and event["tid"] < _MIGRATIONS_FROM
    }
    return [Lane(key, devices[key[0]], name) for key, name in sorted(threads.items())]


def _is_copies(event: Mapping[str, Any]) -> bool:
    return bool(event["tid"] >= _COPIES_FROM)


def _lane_key(event: Mapping[str, Any]) -> tuple[int, int]:
    """Return the lane of an event: copies into and out of a device's memory share one."""
    return event["pid"], min(event["tid"], _COPIES_FROM)


def _model(kernel: str) -> str | None:
    """Return the model of a kernel or queue that the front end has made, ``NAME/VERSION``."""
    name = kernel.rpartition("/")[0]
    return name if name in MODELS else None


def _ends(arrow: Arrow) -> tuple[int, int]:
    return arrow.source, arrow.target
