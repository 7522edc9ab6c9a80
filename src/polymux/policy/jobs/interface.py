"""What the engine of jobs expects of a policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol, Self

from polymux.core.jobs.decision import JobPolicyDecision
from polymux.core.jobs.event import JobEvent
from polymux.core.jobs.view import JobView


class JobPolicy(Protocol):
    """Decides which job holds which device, and when and how it is taken away.

    A policy reads no clock, does no I/O and keeps nothing between calls that the same calls would not bring about
    again.

    Attributes
    ----------
    exclusive : bool
        Whether a device has at most one holder; the engine then checks that, and the memory.
    """

    exclusive: ClassVar[bool]

    @classmethod
    def make(cls, option: str) -> Self:
        """Make a fresh policy; `option` is what follows ``NAME=``, empty for none.

        Raises
        ------
        InvalidRequest
            If it does not take that option.
        """
        ...

    def decide(self, view: JobView, event: JobEvent, now: int) -> Sequence[JobPolicyDecision]:
        """Answer an event, which the view already contains.

        Returns
        -------
        sequence of JobPolicyDecision
            Carried out in this order. A `Grant` needs a job that waits and a device from `JobView.usable` that nobody
            holds, with room for the job; a `TakeBack` a job that holds one, and a level that it and the device know;
            a `LetTasksRun` a device that tasks wait for and no job holds. The engine raises `BadDecision` otherwise.
            The policy is asked again, with the same event and the new view, until it decides nothing more than when
            to be woken; so it may well decide one thing at a time.

        Notes
        -----
        Whoever may give a device to somebody and does not has to ask for a `WakeAt`.
        """
        ...
