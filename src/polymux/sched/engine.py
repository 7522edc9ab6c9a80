"""The scheduling engine: one event in, the decisions that follow out."""

from __future__ import annotations

from collections.abc import Sequence

from polymux.core.decision import Answer, Decision, FailHead, Stay, WakeAt
from polymux.core.errors import BadDecision
from polymux.core.event import Event, HomePossible, KernelMissing
from polymux.core.ids import QueueId
from polymux.core.snapshot import QueueState, QueueView, Snapshot
from polymux.core.status import TaskStatus
from polymux.policy.interface import Policy
from polymux.sched.apply import apply
from polymux.sched.check import check
from polymux.sched.fold import fold
from polymux.sched.state import State


class Engine:
    """Folds events into its state, asks the policy, and returns checked decisions in the order to carry them out.

    Parameters
    ----------
    policy : Policy
        Fresh, and used by this engine alone.

    Notes
    -----
    The life of a queue::

                 Bind                Revoke, Migrate, DeviceLost
        WAITING ------> BOUND ------------------------------------> REVOKING
          |  ^            |                                            |
          |  +------------+------------------ QueueReleased -----------+
          |  |
          |  | DeviceAdded               QueueClosed: WAITING and STRANDED end at once; BOUND is revoked,
          v  |                           becomes CLOSING (as REVOKING does) and ends with its QueueReleased.
        STRANDED (FailAll)

    Between a `Bind` and its `QueueReleased` the engine makes no other `Bind` for that queue, so two accelerator
    threads never drain one ring. Not thread-safe, no clock: `now` is the driver's. Cost per event does not depend
    on the number of queues, except for `DeviceAdded` and `DeviceLost`.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._state = State()

    def handle(self, event: Event, now: int) -> list[Decision]:
        """Fold one event in and return what is to be done about it.

        Parameters
        ----------
        event : Event
            Events about queues that are closed by now change nothing: threads report them late.
        now : int, ns
            Monotonic time at which the driver took the event up.

        Returns
        -------
        list of Decision
            `Bind`, `Revoke`, `Stay`, `FailHead`, `FailAll`, `Reject`, `WakeAt` and `Answer`, never `Migrate`. Each
            `KernelMissing` and `HomePossible` of an open queue gets exactly one `Revoke`, `FailHead` or `Stay`, and
            each `MigrateRequested` one `Answer`, now or later.

        Raises
        ------
        InvalidRequest
            For an event that cannot be (a queue opened twice, an unknown device lost); nothing changes.
        BadDecision
            If the policy raised, or decided what must not be carried out. The event is folded in, none of the
            policy's decisions about it is; those in the error's `decisions` are to be carried out, and recorded,
            all the same.
            A queue that waits for a stream goes on waiting, and the next event asks the policy again.
        """
        state = self._state
        state.begin()
        queue = getattr(event, "queue", None)
        if queue is not None:
            state.remember(queue, now, event)
        if isinstance(event, KernelMissing | HomePossible) and not self._is_bound(event):
            decisions = self._answer_late(event)
        else:
            decisions = fold(state, event)
            if state.opened is not None:
                state.remember(state.opened, now, event)
            try:
                chosen = self._ask(event, now)
            except BadDecision as bad:
                bad.decisions = (*decisions, *self._answer_instead(event))
                raise
            for decision in chosen:
                decisions += apply(state, event, decision, now)
        for decision in decisions:
            if not isinstance(decision, WakeAt | Answer):
                state.remember(decision.queue, now, decision)
        return decisions

    def queue(self, queue: QueueId) -> QueueView | None:
        """Show one queue; None when it is not open. O(1)."""
        return self._state.queues.get(queue)

    def snapshot(self) -> Snapshot:
        """Show the state in a snapshot that stays as it is, for status reports; O(queues)."""
        return self._state.copy()

    def _ask(self, event: Event, now: int) -> Sequence[Decision]:
        try:
            chosen = self._policy.decide(self._state.view(), event, now)
        except Exception as error:
            queue = getattr(event, "queue", None)
            story = () if queue is None else self._state.story(queue)
            raise BadDecision(event, f"the policy raised {error!r}", story) from error
        check(self._state, event, chosen, now)
        return chosen

    def _answer_instead(self, event: Event) -> list[Decision]:
        """Let go of the head task that the event holds, where the policy gave no usable answer."""
        why = "the scheduling policy gave no usable answer, see the server's log"
        match event:
            case KernelMissing():
                message = f"kernel {event.kernel!r} is missing on its device and {why}"
                return [FailHead(event.queue, TaskStatus.REJECTED, message, reason=why)]
            case HomePossible():
                return [Stay(event.queue, reason=why)]
        return []

    def _is_bound(self, event: KernelMissing | HomePossible) -> bool:
        queue = self.queue(event.queue)
        return queue is not None and queue.state is QueueState.BOUND

    def _answer_late(self, event: KernelMissing | HomePossible) -> list[Decision]:
        queue = self.queue(event.queue)
        if queue is None or queue.state is QueueState.CLOSING:
            return []
        return [Stay(queue.id, reason=f"it is {queue.state.value}; look again where it is bound next")]
