"""uvicorn's HTTP/1.1 connection with a bound on the header and the protocol's error object for broken requests.

uvicorn with httptools has no limit on the size of a request's header, and answers what is not HTTP in plain text. The
parser itself refuses what can smuggle a request: two lengths, or a length together with chunks.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, ClassVar

from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from polymux.serving.json_text import dump

__all__ = ["limited_protocol"]


def limited_protocol(max_header_nbytes: int) -> type[HttpToolsProtocol]:
    """Return a connection class that refuses headers of more than `max_header_nbytes` with 431."""
    return type("LimitedProtocol", (_LimitedProtocol,), {"max_header_nbytes": max_header_nbytes})


class _LimitedProtocol(HttpToolsProtocol):
    """One connection."""

    max_header_nbytes: ClassVar[int]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._header: object | None = None  # the one that is being received
        self._unfinished_nbytes = 0
        self._header_nbytes = 0
        self._running: RequestResponseCycle | None = None

    def data_received(self, data: bytes) -> None:
        """Take bytes from the socket; called by the event loop."""
        header = self._header
        super().data_received(data)
        # The parser keeps a field to itself until it is complete; this bounds one that never is.
        self._unfinished_nbytes += len(data) if header is not None and header is self._header else 0
        if self._unfinished_nbytes > self.max_header_nbytes and not self.transport.is_closing():
            self._refuse_header()

    def connection_lost(self, exc: Exception | None) -> None:
        """Take note that the client is gone; called by the event loop."""
        # With pipelined requests uvicorn knows only the last one, but it is the first that runs.
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_message_begin(self) -> None:
        """Start a request; called by the parser."""
        super().on_message_begin()
        self._header = object()
        self._unfinished_nbytes = self._header_nbytes = 0

    def on_url(self, url: bytes) -> None:
        """Take a part of the path; called by the parser."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a field of the header or, after a body in chunks, of the trailer; called by the parser."""
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start the handler; called by the parser."""
        super().on_headers_complete()
        self._header = None

    def _count(self, nbytes: int) -> None:
        self._header_nbytes += nbytes
        if self._header_nbytes > self.max_header_nbytes:
            raise ValueError("header too large")  # the parser stops, and uvicorn calls send_400_response

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP and end the connection."""
        if self._header_nbytes > self.max_header_nbytes:
            self._refuse_header()
        else:
            self._refuse(400, msg)

    def _refuse_header(self) -> None:
        self._refuse(431, f"the header has more than {self.max_header_nbytes} bytes")

    def _refuse(self, status: int, message: str) -> None:
        body = dump({"error": message})
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
