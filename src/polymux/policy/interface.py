"""What the engine expects of a policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from polymux.core.decision import Decision
from polymux.core.event import Event
from polymux.core.snapshot import Snapshot


class Policy(Protocol):
    """Decides which queue runs where.

    A policy reads no clock, does no I/O and keeps nothing between calls that the same events would not bring about
    again: a recording replayed through a fresh policy must give the same decisions.
    """

    def decide(self, snapshot: Snapshot, event: Event, now: int) -> Sequence[Decision]:
        """Answer one event, which the snapshot already contains.

        Parameters
        ----------
        snapshot : Snapshot
            Good during this call only.
        event : Event
        now : int, ns
            Monotonic time of the event.

        Returns
        -------
        sequence of Decision
            At most one per queue:

            - for a queue in ``snapshot.waiting``: `Bind`; `FailAll` when no device that works may run it; `Reject`
              if this event opened it; or nothing for now (ask for a `WakeAt` then);
            - for the queue of a `KernelMissing`, while its state is HELD, exactly one of `Bind` to a stream of a
              device that has the kernel, `FailHead` and `Stay`;
            - likewise for a `HomePossible`: `Bind` to a stream of its home, or `Stay`;
            - likewise for a `DeviceWished`: `Bind` to a stream of that device, or `Stay`;
            - for any other bound queue: `Migrate` (to another device), `Revoke` (to place it anew), `Weigh`, or
              nothing. A queue that is PREPARING takes `Weigh` only.

        Notes
        -----
        A queue's ``pinned`` and ``target`` bind the policy, and so does ``barred``: the engine raises `BadDecision`
        otherwise. Queues that are pinned to a stream never wait: the engine binds them, and they stay where they are.
        """
        ...
