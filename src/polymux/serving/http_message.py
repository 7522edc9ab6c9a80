"""Requests and answers over ASGI: headers, bodies, and the protocol's error object."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from polymux.serving.errors import RequestError
from polymux.serving.json_text import dump
from polymux.serving.limits import Limits

__all__ = [
    "Disconnected",
    "HttpRequest",
    "Receive",
    "Reply",
    "Scope",
    "Send",
    "error_bytes",
    "error_reply",
    "json_reply",
]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_JSON = (b"content-type", b"application/json")
_PIECE_NBYTES = 256 * 1024
_BEYOND_ALL_LIMITS = 10**18


class Disconnected(Exception):
    """The client went away before its request was complete; nobody waits for an answer."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer: status, header fields, and the body in pieces."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    pieces: list[bytes]

    async def send(self, send: Send) -> None:
        """Send it; large bodies bit by bit, so that a slow client holds up nobody but himself."""
        length = sum(len(piece) for piece in self.pieces)
        headers = [*self.headers, (b"content-length", str(length).encode())]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        for piece in self.pieces:
            for start in range(0, len(piece), _PIECE_NBYTES):
                part = piece if len(piece) <= _PIECE_NBYTES else piece[start : start + _PIECE_NBYTES]
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def json_reply(value: Any, status: int = 200, headers: tuple[tuple[bytes, bytes], ...] = ()) -> Reply:
    """Return an answer whose body is `value` as JSON."""
    return Reply(status, (_JSON, *headers), [dump(value)])


def error_reply(error: RequestError) -> Reply:
    """Return the protocol's error object with the error's status."""
    return json_reply({"error": error.message}, error.status, error.headers)


def error_bytes(status: int, message: str, fields: bytes = b"", *, closes: bool) -> bytes:
    """Return the error object as a whole HTTP/1.1 answer, for what never becomes a request of the application.

    Parameters
    ----------
    status : int
        The status.
    message : str
        What was wrong.
    fields : bytes
        Further header fields, each with its end of line.
    closes : bool
        Whether the connection ends with it.
    """
    body = dump({"error": message})
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n"
    ).encode()
    end = b"connection: close\r\n\r\n" if closes else b"\r\n"
    return b"".join((head, fields, end, body))


class HttpRequest:
    """One HTTP request.

    Parameters
    ----------
    scope, receive
        As ASGI gives them.
    limits : Limits
        Bounds of a request.
    """

    def __init__(self, scope: Scope, receive: Receive, limits: Limits) -> None:
        self.method: str = scope["method"]
        self.raw_path: bytes = scope["raw_path"]
        self._headers: list[tuple[bytes, bytes]] = scope["headers"]
        self._receive = receive
        self._limits = limits
        self._complete = False

    def unread_closes(self, error: RequestError) -> RequestError:
        """Return `error`, with a header that ends the connection when its body may never be sent.

        A client that waits for ``100 Continue`` gets the error instead, and then the connection's next bytes could be
        that body or the next request.
        """
        if self._complete or self.header(b"expect") is None:
            return error
        return RequestError(error.status, error.message, (*error.headers, (b"connection", b"close")))

    def header(self, name: bytes) -> str | None:
        """Return a header field's value; None when it is absent.

        Raises
        ------
        RequestError
            400 when it is there more than once.
        """
        values = [value for key, value in self._headers if key == name]
        if len(values) > 1:
            raise RequestError(400, f"the header {name.decode()} is given {len(values)} times")
        return values[0].decode("latin-1") if values else None

    def length_header(self, name: bytes) -> int | None:
        """Return a header field that is a length in bytes; None when it is absent.

        Raises
        ------
        RequestError
            400 when it is not a whole number.
        """
        value = self.header(name)
        if value is None:
            return None
        if not (value.isascii() and value.isdigit()):
            raise RequestError(
                400, f"the header {name.decode()} must be a whole number of bytes, got {value!r:.40}"
            )
        return int(value) if len(value) <= 18 else _BEYOND_ALL_LIMITS

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body piece by piece, as it arrives.

        Raises
        ------
        Disconnected
            When the client goes away first.
        RequestError
            408 when the client pauses too long.
        """
        more = True
        while more:
            try:
                async with asyncio.timeout(self._limits.body_idle_s):
                    message = await self._receive()
            except TimeoutError:
                raise RequestError(
                    408,
                    f"no data for {self._limits.body_idle_s:g} s within the body",
                    ((b"connection", b"close"),),
                ) from None
            if message["type"] == "http.disconnect":
                raise Disconnected
            more = message.get("more_body", False)
            self._complete = not more
            if piece := message.get("body", b""):
                yield piece

    async def small_body(self, max_nbytes: int = 64 * 1024) -> bytes:
        """Return the whole body of a control request.

        Raises
        ------
        RequestError
            413 when it is larger than `max_nbytes`.
        """
        body = bytearray()
        async for piece in self.pieces():
            body += piece
            if len(body) > max_nbytes:
                raise RequestError(413, f"the body has more than {max_nbytes} bytes")
        return bytes(body)
