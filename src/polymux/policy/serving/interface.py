"""What the engine of requests expects of a policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, Self, runtime_checkable

from polymux.core.serving.decision import PolicyDecision, RejectRequest
from polymux.core.serving.event import ServingEvent
from polymux.core.serving.model import Request
from polymux.core.serving.view import ServingView


class ServingPolicy(Protocol):
    """Decides which requests are admitted, and which batch starts when, where, and on how many units.

    A policy reads no clock, does no I/O and keeps nothing between calls that the same calls would not bring about
    again.
    """

    @classmethod
    def make(cls, option: str) -> Self:
        """Make a fresh policy; `option` is what follows ``NAME=``, empty for none.

        Raises
        ------
        InvalidRequest
            If it does not take that option.
        """
        ...

    def admit(self, view: ServingView, request: Request, now: int) -> RejectRequest | None:
        """Say whether a request that just arrived may wait; it is not in the view yet.

        Returns
        -------
        RejectRequest or None
            None: it is admitted.
        """
        ...

    def decide(self, view: ServingView, event: ServingEvent, now: int) -> Sequence[PolicyDecision]:
        """Answer an event, which the view already contains.

        Called after every event, except for arrivals while no device could take a batch (``view.can_start`` is
        false), and those that a `SelectivePolicy` does not await: what arrives then is seen at the next event. A
        policy that has to look again earlier returns a `WakeAt`.

        Returns
        -------
        sequence of PolicyDecision
            Carried out in this order. A `Start` needs a share that is startable when its turn comes (earlier ones of
            the same answer count), on which the model is ready, and as many waiting requests as it names, of together
            at most `ModelState.max_batch` items. The engine raises `BadDecision` otherwise.
            After an answer with a `Start` the policy is asked again, with the same event and the new view, until an
            answer has none.

        Notes
        -----
        Whoever may start something and does not, or waits for more requests, has to ask for a `WakeAt`.
        """
        ...


@runtime_checkable
class SelectivePolicy(ServingPolicy, Protocol):
    """A policy that need not be asked at every arrival, of which there are very many."""

    def awaits(self, view: ServingView, request: Request, now: int) -> bool:
        """Say whether to call `decide` now that a request has arrived, which waits unless `admit` refused it.

        Called for each arrival while some device could take a batch, until the answer is true. False promises that
        nothing is lost by not calling `decide`: what arrived is seen at the next event, or at a time for which the
        policy has asked before.
        """
        ...
