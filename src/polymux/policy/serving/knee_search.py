"""Finds out, while it is served, how long a model without a profile takes and where its knee is.

Shared by policies: `KneeSearches` watches the batches of such models and says on which share each should run.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from statistics import median

from polymux.core.ids import DeviceId
from polymux.core.serving.event import BatchEnded, ModelRemoved, ServingEvent
from polymux.core.serving.model import BatchId, ModelName, ServingDevice
from polymux.core.serving.view import ServingView

FIRST_PERCENT = 30
"""Share of a device on which a model without a profile starts, rounded to what the device offers."""
ENOUGH = 3
"""Batches of one size that are measured before it is believed."""
WITHIN = 0.1
"""A share is at the knee or above it if it takes at most so much longer than the whole device."""
_MOST = 12
"""Batches of different sizes after which those of different shares are compared by their time per item."""


def first_share(shares: Collection[int], units: int) -> int:
    """The share nearest to 30 % of a device, the smaller of two."""
    wanted = FIRST_PERCENT * units / 100
    return min(shares, key=lambda share: (abs(share - wanted), share))


@dataclass(slots=True)
class KneeSearch:
    """The search for one model on one device: by binary search on measured latencies.

    Starts at 30 % of the device, measures the whole device, then halves the shares between which the knee must lie: the
    smallest share on which a batch takes at most 10 % longer than on the whole device.

    Parameters
    ----------
    shares : tuple of int
        That the device offers, ascending; those on which the model turns out not to run are left out.
    units : int
        Of the device.

    Attributes
    ----------
    share : int
        On which the model should run now.
    done : bool
        Whether that is the knee.
    times_ns : dict of int to dict of int to list of int
        Measured times by share and items, the last `ENOUGH` of each.

    References
    ----------
    D-STACK: models whose knee is not known are moved by binary search from 30 %.
    """

    shares: tuple[int, ...]
    units: int
    share: int = 0
    done: bool = False
    times_ns: dict[int, dict[int, list[int]]] = field(default_factory=dict)
    _low: int = 0
    _high: int = 0

    def __post_init__(self) -> None:
        self.share = first_share(self.shares, self.units)
        self._high = len(self.shares) - 1
        self.done = len(self.shares) == 1

    def measure(self, units: int, items: int, took_ns: int) -> None:
        """Note how long a batch took, and move on when that is enough."""
        times = self.times_ns.setdefault(units, {}).setdefault(items, [])
        times.append(took_ns)
        del times[:-ENOUGH]
        if not self.done:
            self._advance()

    def exclude(self, units: int) -> None:
        """The model does not run on a share: search among the others."""
        if units in self.shares and len(self.shares) > 1:
            self.shares = tuple(share for share in self.shares if share != units)
            self._low, self._high = 0, len(self.shares) - 1
            if self.share == units:
                self.share = first_share(self.shares, self.units)
            self.done = False
            self._advance()

    def _advance(self) -> None:
        whole = self.shares[-1]
        while self._low < self._high:
            if not self._measured(self.share):
                return
            if not self._measured(whole):
                self.share = whole
                return
            if self.share == whole:
                self.share = self._next()
                continue
            at = self.shares.index(self.share)
            if self._ratio(self.share, whole) <= 1 + WITHIN:
                self._high = min(self._high, at)
            else:
                self._low = max(self._low, at + 1)
            self.share = self._next()
        self.share = self.shares[self._high]
        self.done = True

    def _next(self) -> int:
        first = first_share(self.shares, self.units)
        if first in self.times_ns and self._low <= self.shares.index(first) < self._high:
            return first  # it was measured in the beginning
        return self.shares[(self._low + self._high) // 2]

    def _measured(self, share: int) -> bool:
        by_items = self.times_ns.get(share, {})
        counts = [len(times) for times in by_items.values()]
        return max(counts, default=0) >= ENOUGH or len(counts) >= _MOST

    def _ratio(self, share: int, whole: int) -> float:
        one, other = self.times_ns[share], self.times_ns[whole]
        common = one.keys() & other.keys()
        if common:
            best = max(common, key=lambda items: (min(len(one[items]), len(other[items])), items))
            return median(one[best]) / median(other[best])
        return _per_item(one) / _per_item(other)


def _per_item(times_ns: dict[int, list[int]]) -> float:
    return sum(median(times) for times in times_ns.values()) / sum(times_ns)


@dataclass(slots=True)
class LearnedSurface:
    """A latency surface made of what a search has measured; part of the SLO before that.

    Linear in the batch: through the smallest and the largest batch that were measured on a share; where there is only
    one, half of its time is taken to grow with the batch. A share that was not measured takes the time of the next
    smaller measured one, or that of the next larger one times the ratio of the shares.

    Parameters
    ----------
    search : KneeSearch
    max_batch : int
    guess_ns : int
        Of a batch of one, as long as nothing has been measured.
    """

    search: KneeSearch
    max_batch: int
    guess_ns: int

    def latency_ns(self, units: int, batch: int) -> int:
        """Time of a batch on a share, in ns, at least 1."""
        measured = sorted(self.search.times_ns)
        if not measured:
            return max(1, self.guess_ns * (1 + batch) // 2)
        smaller = [share for share in measured if share <= units]
        base = smaller[-1] if smaller else measured[0]
        by_items = self.search.times_ns[base]
        low, high = min(by_items), max(by_items)
        low_ns, high_ns = median(by_items[low]), median(by_items[high])
        if low == high:
            time_ns = high_ns * (0.5 + 0.5 * batch / high)
        else:
            slope = max(0.0, (high_ns - low_ns) / (high - low))
            time_ns = max(low_ns + slope * (batch - low), low_ns / 2)
        return max(1, round(time_ns * max(1.0, base / units)))


class KneeSearches:
    """The searches of all models that have no surface for a kind of device."""

    def __init__(self) -> None:
        self._searches: dict[tuple[ModelName, DeviceId], KneeSearch] = {}
        self._running: dict[BatchId, tuple[KneeSearch, int, int, int]] = {}

    def of(self, model: ModelName, device: ServingDevice) -> KneeSearch:
        """The search for a model on a device, begun if need be."""
        key = (model, device.id)
        search = self._searches.get(key)
        if search is None:
            search = self._searches[key] = KneeSearch(device.shares, device.units)
        return search

    def observe(self, view: ServingView, event: ServingEvent, now: int) -> bool:
        """Take in what happened, at the beginning of each decision; say whether a search has moved on."""
        if not self._searches:
            return False
        moved = False
        match event:
            case BatchEnded(number, failed):
                ended = self._running.pop(number, None)
                if ended is not None and not failed:
                    search, units, items, start = ended
                    before = search.share
                    search.measure(units, items, now - start)
                    moved = search.share != before
            case ModelRemoved(name):
                self._forget(name)
            case _:
                pass
        for (name, device_id), search in self._searches.items():
            state = view.models.get(name)
            for batch in state.running.values() if state is not None else ():
                if batch.device == device_id and batch.id not in self._running:
                    self._running[batch.id] = (search, batch.units, batch.items, batch.start_ns)
        return moved

    def forget_times(self, name: ModelName) -> None:
        """Forget how long batches of a model took, not where its knee is."""
        for (model, _), search in self._searches.items():
            if model == name:
                search.times_ns.clear()

    def _forget(self, name: ModelName) -> None:
        for key in [key for key in self._searches if key[0] == name]:
            del self._searches[key]
