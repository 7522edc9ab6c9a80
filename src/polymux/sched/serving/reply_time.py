"""The way back: how long an answer takes from the end of its batch to the connection, lately."""

from __future__ import annotations

__all__ = ["ReplyTime"]

_LEAST_NS = 1_000_000
_FORGETTING = 0.995
"""What one answer leaves of the longest time before it: half is forgotten after 140 of them."""


class ReplyTime:
    """Learns how long before its deadline a batch has to end, so that the answer is there in time.

    Attributes
    ----------
    reserve_ns : int
    """

    def __init__(self) -> None:
        self._longest_ns = 0.0

    @property
    def reserve_ns(self) -> int:
        """Twice the longest time seen lately, at least 1 ms."""
        return max(_LEAST_NS, round(2 * self._longest_ns))

    def note(self, took_ns: int) -> None:
        """Learn from one answer; a clock that went back teaches nothing."""
        self._longest_ns = max(float(took_ns), self._longest_ns * _FORGETTING)
