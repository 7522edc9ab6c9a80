"""What has to hold of every timeline that a server writes."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

Event = dict[str, Any]
Track = tuple[int, int]


class Timeline:
    """A trace, read back; times in ns.

    Parameters
    ----------
    path : Path
    """

    def __init__(self, path: Path) -> None:
        self.events: list[Event] = json.loads(path.read_text())["traceEvents"]
        self.devices = {e["pid"]: e["args"]["name"] for e in self.events if e["name"] == "process_name"}
        self.tracks: dict[Track, str] = {
            (e["pid"], e["tid"]): e["args"]["name"] for e in self.events if e["name"] == "thread_name"
        }
        self.slices: dict[Track, list[Event]] = defaultdict(list)
        for event in self.events:
            if event["ph"] == "X":
                event["begin"], event["end"] = (
                    round(event["ts"] * 1e3),
                    round((event["ts"] + event["dur"]) * 1e3),
                )
                self.slices[event["pid"], event["tid"]].append(event)
        self.flows: dict[int, list[Event]] = defaultdict(list)
        for event in self.events:
            if event["ph"] in "stf":
                self.flows[event["id"]].append(event)

    def of(self, category: str) -> list[Event]:
        """Slices of a category, in the order of time."""
        found = [e for slices in self.slices.values() for e in slices if e["cat"] == category]
        return sorted(found, key=lambda event: int(event["begin"]))

    def under(self, point: Event) -> Event:
        """The slice in which an end of an arrow lies."""
        at = round(point["ts"] * 1e3)
        found = [e for e in self.slices[point["pid"], point["tid"]] if e["begin"] <= at < e["end"]]
        assert len(found) == 1, (point, found)
        return found[0]

    def check(self) -> None:
        """Check tracks, slices, arrows and counters."""
        assert {event["ph"] for event in self.events} <= set("MXstfC")
        for track, slices in self.slices.items():
            name = self.tracks[track]
            slices.sort(key=lambda event: int(event["begin"]))
            assert all(one["end"] <= other["begin"] for one, other in pairwise(slices)), f"{name} overlaps"
            assert all(event["begin"] < event["end"] for event in slices)
            kinds = {event["cat"] for event in slices}
            expected = {"stream": "task", "copies": "transfer", "migrations": "migration"}[name.split()[0]]
            assert kinds == {expected}, name
        for points in self.flows.values():
            self._check_flow(points)
        for event in self.events:
            if event["ph"] == "C":
                assert event["name"] in ("memory used", "waiting tasks")
                assert all(value >= 0 for value in event["args"].values())

    def _check_flow(self, points: list[Event]) -> None:
        assert [point["ph"] for point in points] == ["s", *"t" * (len(points) - 2), "f"]
        assert all(one["ts"] <= other["ts"] for one, other in pairwise(points))
        slices = [self.under(point) for point in points]
        kinds = [event["cat"] for event in slices]
        assert kinds.count("migration") == 1
        move = slices[kinds.index("migration")]
        args = move["args"]
        assert self.devices[move["pid"]] == args["to"].rpartition("/")[0]
        for event, kind in zip(slices, kinds, strict=True):
            assert event["args"]["queue"] == args["queue"]
            track = self.tracks[event["pid"], event["tid"]]
            if kind == "task":
                first = event["begin"] >= move["end"]
                assert track == f"stream {args['to'] if first else args['from']}"
                assert first or event["end"] <= move["begin"]
        if kinds[-1] == "task":
            assert slices[-1]["begin"] == move["end"], "it ends when the first task begins"
