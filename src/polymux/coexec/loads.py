"""What else runs: how much slower each stream is at the moment than its model says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any

from polymux.coexec.units import Unit
from polymux.perfmodel.coexec.unit import Load

REMEMBERED_S = 1.0
"""How long a slow run counts for the next ones."""
NOTICED = 1.15
"""A stream that takes so much longer than predicted is disturbed; less is the model's error."""
STEP = 0.25
"""Slowdowns are rounded to multiples of it, so that plans are found again."""
PERSISTENT = 8
"""Disturbed runs of a kind in a row after which it is the model that is wrong."""
SAMPLE_SHARE = 0.01
"""Part of the time that asking the server may take."""


@dataclass(slots=True)
class _Seen:
    ratio: float = 1.0
    at_s: float = 0.0


class Loads:
    """Keeps how the streams fare; used by one thread at a time."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}
        self._disturbed: Counter[Hashable] = Counter()
        self._active: Counter[str] = Counter()
        self._busy: dict[str, tuple[int, int]] = {}
        self._others: dict[str, float] = {}
        self._sampled_s = 0.0
        self._sample_took_s = 0.0

    def wants_sample(self, expected_s: float) -> bool:
        """Tell whether asking the server costs little beside a run of this length and is due."""
        due_s = max(REMEMBERED_S / 2, self._sample_took_s / SAMPLE_SHARE)
        return expected_s * SAMPLE_SHARE > self._sample_took_s and monotonic() - self._sampled_s > due_s

    def sampled(self, status: Mapping[str, Any], session: str, took_s: float) -> None:
        """Take note of what the server says: how much of each stream's time went to other applications' queues."""
        now_ns = status["server"]["now_ns"]
        total = {
            stream["id"]: stream["busy_ns"] for device in status["devices"] for stream in device["streams"]
        }
        mine: Counter[str] = Counter()
        waiting: Counter[str] = Counter()
        for queue in status["queues"]:
            if str(queue["session"]) == session:
                mine[queue["stream"]] += queue["busy_ns"]
            elif queue["pending"]:
                waiting[queue["stream"]] += 1
        for stream, busy_ns in total.items():
            others_ns = max(0, busy_ns - mine[stream])
            before_ns, at_ns = self._busy.get(stream, (others_ns, now_ns))
            self._busy[stream] = (others_ns, now_ns)
            part = (others_ns - before_ns) / (now_ns - at_ns) if now_ns > at_ns else 0.0
            # a stream takes turns, so whoever has work gets his part; with nobody else waiting it is ours
            fair = waiting[stream] / (waiting[stream] + 1)
            self._others[stream] = min(max(part, 0.0), fair)
        self._sampled_s, self._sample_took_s = monotonic(), took_s

    def begin(self, units: Iterable[Unit]) -> None:
        """Note that a run uses these units."""
        self._active.update(unit.place.stream for unit in units)

    def end(self, units: Iterable[Unit]) -> None:
        """Note that it has ended."""
        self._active.subtract(unit.place.stream for unit in units)

    def saw(self, unit: Unit, observed_s: float, predicted_s: float, kind: Hashable = None) -> bool:
        """Take note of a run; True when its times should teach the model.

        Parameters
        ----------
        unit : Unit
        observed_s, predicted_s : float
            Of all pieces that it computed.
        kind : Hashable
            Of the run: beside whom, and how large. What is slow in all runs of a kind is not disturbed.
        """
        ratio = observed_s / predicted_s if predicted_s > 0 else 1.0
        seen = self._seen.setdefault(unit.place.stream, _Seen())
        seen.ratio, seen.at_s = ratio, monotonic()
        if 1 / NOTICED <= ratio <= NOTICED:
            self._disturbed.pop((unit.id, kind), None)
            return True
        self._disturbed[unit.id, kind] += 1
        return ratio < 1 or self._disturbed[unit.id, kind] > PERSISTENT

    def now(self, units: Iterable[Unit]) -> dict[str, Load]:
        """Say which units are slower at present, by their ids."""
        found = {}
        now_s = monotonic()
        for unit in units:
            stream = unit.place.stream
            slowdown = 1.0 + max(0, self._active[stream])
            seen = self._seen.get(stream)
            if seen is not None and now_s - seen.at_s < REMEMBERED_S and seen.ratio > NOTICED:
                slowdown = max(slowdown, seen.ratio)
            elif now_s - self._sampled_s < REMEMBERED_S:
                slowdown = max(slowdown, 1 / (1 - min(self._others.get(stream, 0.0), 0.9)))
            slowdown = round(slowdown / STEP) * STEP
            if slowdown > 1.0:
                found[unit.id] = Load(slowdown)
        return found
