"""The requests of a scenario in the order of their arrival, made in pieces: a long run has millions."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

import numpy as np

from polymux.core.serving.model import Request
from polymux.sim.serving.arrivals import Times
from polymux.sim.serving.scenario import Scenario
from polymux.sim.serving.tally import Tally

_PIECE = 4096
_TOLD_EACH = 100
"""Models."""


class RequestStream:
    """The open-loop requests of all models, merged by time; those at the same time in the order of the models.

    Parameters
    ----------
    scenario : Scenario
    tally : Tally
        Is told how many there will be.
    progress : callable, optional
        Is told of how many models the requests have been made.

    Attributes
    ----------
    next_ns : int
        Arrival of the next one; a time that never comes when there is none.
    piece : list of Request
        Those that have been made, in order.
    at : int
        Index of the next one there.
    """

    def __init__(
        self, scenario: Scenario, tally: Tally, progress: Callable[[str, int, int], None] | None = None
    ) -> None:
        self.next_ns = NEVER_NS
        self._names = [load.model.name for load in scenario.loads]
        self._items = [load.items for load in scenario.loads]
        times: list[Times] = []
        for index, load in enumerate(scenario.loads):
            if progress is not None and index % _TOLD_EACH == 0:
                progress("making requests", index, len(scenario.loads))
            rng = np.random.default_rng([scenario.seed, index])
            arrivals = load.arrivals.times_ns(rng, scenario.duration_ns)
            tally.offer(load.model.name, len(arrivals), int(np.count_nonzero(arrivals >= scenario.warmup_ns)))
            times.append(arrivals)
        sizes = [len(piece) for piece in times]
        merged = np.concatenate(times)
        order = np.argsort(merged, kind="stable")
        self._times = merged[order]
        self._owners = np.repeat(np.arange(len(sizes)), sizes)[order]
        self.count = len(merged)
        self._slos = np.array([load.model.slo_ns for load in scenario.loads], np.int64)
        self._made = 0
        self.piece: list[Request] = []
        self._piece_times: list[int] = []
        self.at = 0
        self.advance(0)

    def reach(self, before_ns: int) -> int:
        """Find the index behind the last one that arrives before a time; perhaps there are more in the next piece."""
        return bisect_left(self._piece_times, before_ns, self.at)

    def advance(self, to: int) -> None:
        """Go on to an index of this piece; to the next piece at its end."""
        self.at = to
        if to < len(self.piece):
            self.next_ns = self._piece_times[to]
            return
        first, end = self._made, min(self._made + _PIECE, self.count)
        if first == end:
            self.next_ns = NEVER_NS
            return
        times, owners = self._times[first:end], self._owners[first:end]
        self._piece_times = times.tolist()
        listed = owners.tolist()
        names = map(self._names.__getitem__, listed)
        items = map(self._items.__getitem__, listed)
        deadlines = (times + self._slos[owners]).tolist()
        ids = range(first + 1, end + 1)
        self.piece = list(map(Request, ids, names, self._piece_times, deadlines, items))  # type: ignore[arg-type]
        self._made, self.at = end, 0
        self.next_ns = self._piece_times[0]


NEVER_NS = 1 << 62
"""Later than everything."""
