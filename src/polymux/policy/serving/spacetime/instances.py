"""On which shares models are made ready: where their cheapest batches run, or where a search for the knee looks."""

from __future__ import annotations

from polymux.core.ids import DeviceId
from polymux.core.serving.decision import PrepareInstance, RetireInstance
from polymux.core.serving.model import ModelName
from polymux.core.serving.view import ModelState, ServingView
from polymux.policy.serving.knee_search import KneeSearch, KneeSearches, LearnedSurface
from polymux.policy.serving.spacetime.lane import Lane
from polymux.policy.serving.spacetime.slot import Board

_WORTH = 1.1
"""A share is made ready when the cheapest batch on those that are costs this many times more."""
_GUESS_PART = 8
"""A batch of a model of which nothing is known is taken to last this part of its SLO."""

_FORGET_SLOS = 4
_FORGET_MOST = 64
"""A model without a profile that has become too slow is tried again after so many SLOs; the latter times as many at
most."""

Key = tuple[ModelName, DeviceId, int]


class Instances:
    """What has been asked for.

    Attributes
    ----------
    wishes : list of PrepareInstance or RetireInstance
        To be decided next.
    searches : KneeSearches
    """

    def __init__(self) -> None:
        self.wishes: list[PrepareInstance | RetireInstance] = []
        self.searches = KneeSearches()
        self._asked: set[Key] = set()
        self._failed: set[Key] = set()
        self._too_slow: dict[ModelName, tuple[int, int]] = {}

    def usable(self, lane: Lane, state: ModelState, board: Board) -> list[int]:
        """Shares of a device that are ready and should be used."""
        ready = sorted(state.ready.get(board.spec.id, ()))
        search = self._search(lane, board)
        if search is None or not ready:
            return ready
        if search.done:
            return [units for units in ready if units in search.times_ns] or ready
        return [min(ready, key=lambda units: abs(units - search.share))]

    def is_unknown(self, lane: Lane, board: Board) -> bool:
        """Whether the model has no surface for a device."""
        return board.spec.kind not in lane.model.surfaces

    def wish(self, lane: Lane, view: ServingView, boards: dict[DeviceId, Board]) -> None:
        """Ask for the share on which a model should run and is not ready: where it is ready at all, or else once."""
        state = view.models[lane.model.name]
        places = [board for device_id, board in boards.items() if state.ready.get(device_id)]
        if not places:
            places = [board for board in boards.values() if self._wanted(lane, board, ()) is not None][:1]
        for board in places:
            ready = state.ready.get(board.spec.id, set())
            units = self._wanted(lane, board, tuple(ready))
            if units is None or units in ready:
                continue
            key = (lane.model.name, board.spec.id, units)
            if key not in self._asked:
                self._asked.add(key)
                self.wishes.append(PrepareInstance(*key, "its cheapest share, or the next of the search"))

    def retire(self, lane: Lane, view: ServingView, board: Board) -> None:
        """Let go of the shares that a finished search leaves behind."""
        search = self._search(lane, board)
        ready = view.models[lane.model.name].ready.get(board.spec.id, set())
        if search is None or not search.done or search.share not in ready:
            return
        kept = {search.share, search.shares[-1]}
        if (
            len(kept) == 1
        ):  # the whole device, beside which nothing runs: another share for when others are there
            kept.add(max((units for units in ready if units < search.share), default=search.share))
        for units in sorted(ready - kept):
            self._asked.discard((lane.model.name, board.spec.id, units))
            self.wishes.append(
                RetireInstance(lane.model.name, board.spec.id, units, "the knee has been found")
            )

    def try_again(self, lane: Lane, now: int) -> bool:
        """Forget what was measured of a model without a profile that nothing is fast enough for; say whether.

        What is not admitted is not measured, and what held it up may be over: after a few SLOs, and after twice as many
        each time that it turns out to be as slow.
        """
        if not lane.learned:
            return False
        name, slo_ns = lane.model.name, lane.model.slo_ns
        since, patience = self._too_slow.get(name, (-1, 1))
        if lane.best is not None:
            if since >= 0 and now - since > 2 * _FORGET_SLOS * patience * slo_ns:
                del self._too_slow[name]
            return False
        if since < 0:
            self._too_slow[name] = (now, patience)
        if since < 0 or now - since < _FORGET_SLOS * patience * slo_ns:
            return False
        self._too_slow[name] = (now, min(_FORGET_MOST, 2 * patience))
        self.searches.forget_times(name)
        return True

    def came(self, name: ModelName, device: DeviceId, units: int) -> None:
        """A model is ready on a share."""
        self._asked.discard((name, device, units))

    def failed(self, lane: Lane | None, board: Board | None, units: int) -> None:
        """A model cannot be made ready on a share: do without it."""
        if lane is None or board is None:
            return
        self._failed.add((lane.model.name, board.spec.id, units))
        search = self._search(lane, board)
        if search is not None:
            search.exclude(units)

    def forget(self, name: ModelName | None = None, device: DeviceId | None = None) -> None:
        """A model or a device is gone: what was asked for there may be asked for again."""
        for keys in (self._asked, self._failed):
            keys -= {key for key in keys if name == key[0] or device == key[1]}
        if name is not None:
            self._too_slow.pop(name, None)

    def _search(self, lane: Lane, board: Board) -> KneeSearch | None:
        if not self.is_unknown(lane, board):
            return None
        search = self.searches.of(lane.model.name, board.spec)
        if board.spec.kind not in lane.learned:
            guess_ns = max(1, lane.model.slo_ns // _GUESS_PART)
            lane.learned[board.spec.kind] = LearnedSurface(search, lane.model.max_batch, guess_ns)
        return search

    def _wanted(self, lane: Lane, board: Board, ready: tuple[int, ...]) -> int | None:
        name, spec = lane.model.name, board.spec
        possible = [units for units in spec.shares if (name, spec.id, units) not in self._failed]
        search = self._search(lane, board)
        if search is not None:
            return search.share if search.share in possible else None
        if not possible or len(ready) == len(spec.shares):
            return None
        best = lane.cheapest(board, possible)
        now = lane.cheapest(board, ready)
        if best is None:
            return None if ready else possible[-1]
        return best.units if now is None or now.cost_ns > _WORTH * best.cost_ns else None
