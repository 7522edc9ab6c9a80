"""Drives an ASGI application in this process: one request, its body in pieces, the answer as values."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

Application = Callable[[Any, Any, Any], Awaitable[None]]


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


async def call(
    application: Application,
    method: str,
    path: str,
    pieces: Sequence[bytes] = (),
    headers: Sequence[tuple[str, str]] = (),
    *,
    disconnect: bool = False,
    stalls: bool = False,
) -> Answer | None:
    """Send a request; with `disconnect` the client goes away after the last piece, with `stalls` nothing follows it.

    None: no answer was sent.
    """
    messages: list[dict[str, Any]] = [
        {"type": "http.request", "body": piece, "more_body": disconnect or stalls or index < len(pieces) - 1}
        for index, piece in enumerate(pieces)
    ]
    if disconnect:
        messages.append({"type": "http.disconnect"})
    elif not messages:
        messages.append({"type": "http.request", "body": b"", "more_body": False})
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        if messages:
            return messages.pop(0)
        return await asyncio.get_running_loop().create_future()

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "headers": [(key.lower().encode(), value.encode()) for key, value in headers],
    }
    await application(scope, receive, send)
    if not sent:
        return None
    fields = {key.decode(): value.decode() for key, value in sent[0]["headers"]}
    return Answer(sent[0]["status"], fields, b"".join(message["body"] for message in sent[1:]))
