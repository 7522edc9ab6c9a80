"""The sizes and times beyond which a request is refused."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds that every request is checked against before anything is allocated for it.

    Attributes
    ----------
    body_nbytes : int
        Greatest request body, and greatest tensor; beyond it the answer is 413.
    header_nbytes : int
        Greatest request line and header fields together; beyond it the answer is 431.
    json_depth : int
        Deepest nesting of arrays and objects in a JSON body; beyond it the answer is 400.
    body_idle_s : float
        Longest pause, in seconds, between two pieces of a body; beyond it the answer is 408.
    connections : int
        Connections at a time; requests on further ones are answered 503 and the connection ends.
    surplus_connections : int
        Further ones that are held until they have that answer; yet others wait in the operating system.
    unseen_requests : int
        Requests at a time that have come and that nobody has looked at; further ones are answered 503.
    """

    body_nbytes: int = 64 * 1024 * 1024
    header_nbytes: int = 32 * 1024
    json_depth: int = 100
    body_idle_s: float = 30.0
    connections: int = 16_384
    surplus_connections: int = 1024
    unseen_requests: int = 2048
