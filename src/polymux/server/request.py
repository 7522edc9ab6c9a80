"""One request of a client, from its text to its answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from polymux.core.errors import InvalidRequest, PolymuxError
from polymux.server.connection import Peer
from polymux.server.protocol import Message, parse_int
from polymux.server.session import Session


class Caller(Protocol):
    """Who asks: a connection, and its session once it has said hello."""

    @property
    def peer(self) -> Peer:
        """Who it is, as the system says."""

    @property
    def session(self) -> Session | None:
        """The session, if it has one."""

    def answer(self, head: str, fields: Mapping[str, object], descriptors: Sequence[int] = ()) -> None:
        """Send an answer, from any thread; the descriptors stay the caller's."""


class Request:
    """A request, answered at most once, from any thread.

    Parameters
    ----------
    caller : Caller
    message : Message
    """

    def __init__(self, caller: Caller, message: Message) -> None:
        self.caller = caller
        self.operation = message.head
        self._fields = message.fields
        self._id = message.fields.get("id")

    @property
    def session(self) -> Session:
        """The session of who asks.

        Raises
        ------
        InvalidRequest
            If it has none yet.
        """
        session = self.caller.session
        if session is None:
            raise InvalidRequest(f"{self.operation!r} needs a session; say hello first")
        return session

    @property
    def wants_answer(self) -> bool:
        """Whether it has an id, by which the answer is found."""
        return self._id is not None

    def text(self, key: str, standard: str | None = None, limit: int = 4096) -> str:
        """Take a field.

        Raises
        ------
        InvalidRequest
            If it is missing and has no standard value, or is too long.
        """
        value = self._fields.get(key, standard)
        if value is None:
            raise InvalidRequest(f"{self.operation!r} lacks the field {key!r}")
        if len(value) > limit:
            raise InvalidRequest(f"{key} has {len(value)} characters; at most {limit} are taken")
        return value

    def number(self, key: str, lowest: int, highest: int, standard: int | None = None) -> int:
        """Take a whole number.

        Raises
        ------
        InvalidRequest
            If it is missing, none, or out of range.
        """
        if key not in self._fields and standard is not None:
            return standard
        return parse_int(key, self._fields.get(key), lowest, highest)

    def answer(self, fields: Mapping[str, object] | None = None, descriptors: Sequence[int] = ()) -> None:
        """Answer that it is done."""
        self._send("ok", fields or {}, descriptors)

    def answer_json(self, value: Any) -> None:
        """Answer with data."""
        self._send("ok", {"json": json.dumps(value)}, ())

    def fail(self, error: BaseException) -> None:
        """Answer that it failed."""
        if isinstance(error, PolymuxError):
            self._send(
                "error",
                {"code": getattr(error, "wire_code", type(error).__name__), "message": str(error)},
                (),
            )
        else:
            text = f"{type(error).__name__}: {error}"
            self._send("error", {"code": "PolymuxError", "message": f"the server failed: {text}"}, ())

    def _send(self, head: str, fields: Mapping[str, object], descriptors: Sequence[int]) -> None:
        if self._id is not None:
            self.caller.answer(head, {"id": self._id, **fields}, descriptors)


Operation = Callable[[Request], None]
