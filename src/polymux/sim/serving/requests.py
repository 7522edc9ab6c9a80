"""The requests of a scenario in the order of their arrival, made in pieces: a long run has millions."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from polymux.core.serving.model import Request
from polymux.sim.serving.arrivals import Times
from polymux.sim.serving.scenario import Scenario
from polymux.sim.serving.tally import Tally

_PIECE = 4096


class RequestStream:
    """The open-loop requests of all models, merged by time; those at the same time in the order of the models.

    Parameters
    ----------
    scenario : Scenario
    tally : Tally
        Is told how many there will be.

    Attributes
    ----------
    next_ns : int
        Arrival of the next one; a time that never comes when there is none.
    """

    def __init__(self, scenario: Scenario, tally: Tally) -> None:
        self.next_ns = NEVER_NS
        self._loads = scenario.loads
        times: list[Times] = []
        for index, load in enumerate(scenario.loads):
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
        self._taken = 0
        self._piece: list[Request] = []
        self._piece_times: list[int] = []
        self._at = 0
        self._advance()

    def take(self, before_ns: int, *, together: bool) -> list[Request]:
        """Take the next requests, of which there are some.

        Parameters
        ----------
        before_ns : int
            The time before which they arrive.
        together : bool
            All of them; otherwise only those that arrive at the same time as the next one.

        Returns
        -------
        list of Request
            Perhaps not all: the next call has the others.
        """
        at, limit = self._at, before_ns if together else min(before_ns, self.next_ns + 1)
        end = bisect_left(self._piece_times, limit, at)
        taken = self._piece[at:end]
        self._at = end
        self._advance()
        return taken

    def _advance(self) -> None:
        if self._at < len(self._piece):
            self.next_ns = self._piece_times[self._at]
            return
        first, end = self._taken, min(self._taken + _PIECE, self.count)
        if first == end:
            self.next_ns = NEVER_NS
            return
        times, owners = self._times[first:end], self._owners[first:end]
        self._piece_times = times.tolist()
        names = [self._loads[owner].model.name for owner in owners.tolist()]
        items = [self._loads[owner].items for owner in owners.tolist()]
        deadlines = (times + self._slos[owners]).tolist()
        ids = range(first + 1, end + 1)
        self._piece = list(map(Request, ids, names, self._piece_times, deadlines, items))  # type: ignore[arg-type]
        self._taken, self._at = end, 0
        self.next_ns = self._piece_times[0]


NEVER_NS = 1 << 62
"""Later than everything."""
