"""Requests that have not been answered, the batches that they are in, and what a refused one is told."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field

from polymux.core.errors import PolymuxError
from polymux.core.serving.decision import RejectRequest
from polymux.core.serving.model import Request
from polymux.serving.errors import RequestError
from polymux.serving.scheduling.merging import Tensors

__all__ = ["Batch", "Pending", "close_all", "refusal", "retry_after"]


@dataclass(slots=True)
class Pending:
    """A request that has not been answered."""

    request: Request
    inputs: Tensors
    future: asyncio.Future[Tensors]
    deadline_ns: int
    """The client's; that of the request leaves time for the way back."""
    settled_ns: int = 0
    timer: asyncio.TimerHandle | None = None

    def settle(self, outcome: Tensors | PolymuxError) -> None:
        """Give the answer to who waits for it; when nobody does, its memory returns."""
        if self.timer is not None:
            self.timer.cancel()
        if self.future.done():
            if not isinstance(outcome, PolymuxError):
                close_all(outcome)
        elif isinstance(outcome, PolymuxError):
            self.future.set_exception(outcome)
        else:
            self.future.set_result(outcome)


@dataclass(slots=True)
class Batch:
    """A batch that runs: who waits for it, and what came of them so far."""

    pending: list[Pending]
    outcomes: dict[int, Tensors | PolymuxError] = field(default_factory=dict)


def refusal(decision: RejectRequest, now: int) -> RequestError:
    """Make the answer to a request that the policy refuses at the time `now`, in ns."""
    text = f"model '{decision.request.model}': refused: {decision.reason or 'it cannot be met'}"
    seconds = 1
    if decision.retry_at_ns is not None:
        wait_ns = max(0, decision.retry_at_ns - now)
        text += f"; its like could be met in {wait_ns / 1e6:.0f} ms"
        seconds = max(1, math.ceil(wait_ns / 1e9))
    return RequestError(503, text, retry_after(seconds))


def retry_after(seconds: int) -> tuple[tuple[bytes, bytes], ...]:
    """Make the header that says when to come back."""
    return ((b"retry-after", str(seconds).encode()),)


def close_all(outputs: Tensors) -> None:
    """Give the memory of outputs back."""
    for buffer in outputs:
        buffer.close()
