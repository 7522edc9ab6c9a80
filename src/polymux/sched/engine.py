"""The scheduling engine: one event in, the decisions that follow out."""

from __future__ import annotations

from collections.abc import Sequence

from polymux.core.decision import Answer, Decision, FailHead, WakeAt
from polymux.core.errors import BadDecision
from polymux.core.event import Event, KernelMissing
from polymux.core.ids import QueueId
from polymux.core.snapshot import QueueView, Snapshot
from polymux.core.status import TaskStatus
from polymux.policy.interface import Policy
from polymux.sched.apply import apply, bind_back, place_pinned
from polymux.sched.check import check, held_queue
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

                          held head: asked and answered in one step
                                HELD
                                 ^|
                 Bind            |v    Migrate, MigrateRequested          QueuePrepared
        WAITING ---------------> BOUND --------------------------> PREPARING ------------+
          ^  ^                   |  ^                                  |                 v
          |  |                   |  +--- it cannot, or is called back--+             REVOKING
          |  |                   +------------- Revoke, DeviceLost ------------------^   |
          |  +------------------------------------ QueueReleased ------------------------+
          | DeviceAdded
        STRANDED <--- FailAll of a WAITING queue

    `QueueClosed`: WAITING and STRANDED end at once; the others are revoked, become CLOSING and end when they are let
    go of. A thread lets go of a queue with a `QueueReleased`, or with a held head (`KernelMissing`, `HomePossible`,
    `DeviceWished`): of a BOUND queue the policy is asked where it goes, which the same call answers with a `Bind`;
    of one that moves or ends anyway it counts as the `QueueReleased`.

    A queue that is pinned to a stream leaves nothing to decide: the engine binds it there, answers its held heads and
    strands it while that stream does not work, without asking the policy.

    Between a `Bind` and the queue's release the engine makes no other `Bind` for it, so two accelerator threads never
    drain one ring. Not thread-safe, no clock: `now` is the driver's. Cost per event does not depend on the number of
    queues, except for `DeviceAdded` and `DeviceLost`; a `LoadReported` costs what it names.
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
            `Bind`, `Weigh`, `Revoke`, `Prepare`, `FailHead`, `FailAll`, `Reject`, `WakeAt` and `Answer`, never
            `Migrate` and `Stay`. Each held head of an open queue gets a `Bind`, after a `FailHead` if nobody may run
            it (or a `FailAll`, when no device may run the queue any more), and each `MigrateRequested` one `Answer`,
            now or later.

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
        decisions = fold(state, event, now)
        decisions += place_pinned(state, event, now)
        if state.opened is not None:
            state.remember(state.opened, now, event)
        try:
            chosen = self._ask(event, now)
        except BadDecision as bad:
            bad.decisions = (*decisions, *self._answer_instead(event, now))
            self._remember(bad.decisions, now)
            raise
        for decision in chosen:
            decisions += apply(state, event, decision, now)
        self._remember(decisions, now)
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

    def _answer_instead(self, event: Event, now: int) -> list[Decision]:
        """Bind a queue whose head is held back to its stream, where the policy gave no usable answer."""
        held = held_queue(self._state, event)
        if held is None:
            return []
        why = "the scheduling policy gave no usable answer, see the server's log"
        failed: list[Decision] = []
        if isinstance(event, KernelMissing):
            message = f"kernel {event.kernel!r} is missing on its device and {why}"
            failed = [FailHead(event.queue, TaskStatus.REJECTED, message, reason=why)]
        return [*failed, *bind_back(self._state, event, held.id, why, now)]

    def _remember(self, decisions: Sequence[Decision], now: int) -> None:
        for decision in decisions:
            if not isinstance(decision, WakeAt | Answer):
                self._state.remember(decision.queue, now, decision)
