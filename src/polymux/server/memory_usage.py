"""Whose data are where: counts over the ledger, for people and for policies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from polymux.server.placement import Placement
from polymux.server.placing import Store


@dataclass(frozen=True, slots=True)
class Usage:
    """Memory of one device, in bytes.

    Parameters
    ----------
    capacity_nbytes : int
    used_nbytes : int
        Sum of the buffers whose content is valid there. One that several devices have is counted at each.
    kept_nbytes : int
        Memory of buffers whose content there is stale, kept for their return until somebody needs it.
    by_session, by_queue : dict
        The used bytes, by the session that owns the buffer and by the queue that used it last. A buffer that was
        freed counts as long as a task holds it.
    """

    capacity_nbytes: int
    used_nbytes: int
    kept_nbytes: int
    by_session: dict[int, int]
    by_queue: dict[str, int]


def usage(store: Store) -> Usage:
    """Count what is held in a memory, by session and by queue."""
    by_session: dict[int, int] = {}
    by_queue: dict[str, int] = {}
    for copy in store.valid.values():
        placement = copy.placement
        by_queue[placement.queue] = by_queue.get(placement.queue, 0) + placement.nbytes
        session = placement.homes[0].owner.session if placement.homes else placement.freed_by
        by_session[session] = by_session.get(session, 0) + placement.nbytes
    return Usage(store.capacity_nbytes, store.used_nbytes, store.kept_nbytes, by_session, by_queue)


def footprints(placements: Iterable[Placement]) -> dict[str, dict[int, int]]:
    """Count by queue and location the bytes of the buffers that it used last, each where it was used last."""
    found: dict[str, dict[int, int]] = {}
    for placement in {id(placement): placement for placement in placements}.values():
        if placement.queue:
            at = found.setdefault(placement.queue, {})
            at[placement.where] = at.get(placement.where, 0) + placement.nbytes
    return found
