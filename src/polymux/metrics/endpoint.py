"""The HTTP endpoint of ``polymux up --metrics``: a few threads of their own, which only ever read."""

from __future__ import annotations

import socket
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from polymux.core.errors import ConfigError
from polymux.metrics.address import Address
from polymux.metrics.exposition import Metrics

PATH = "/metrics"
IDLE_S = 10.0
"""A connection that says nothing for so long is closed."""
MAX_CONNECTIONS = 16
"""Connections at a time; more are closed at once, so that they take no descriptors from the server."""


class Endpoint:
    """Listens from the beginning and answers from `start` to `close`.

    Parameters
    ----------
    address : Address
    metrics : Metrics

    Raises
    ------
    ConfigError
        When the address cannot be had.
    """

    def __init__(self, address: Address, metrics: Metrics) -> None:
        try:
            family, *_, name = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
            self._server = _Server(family, name, metrics)
        except OSError as error:
            remedy = f"cannot listen there: {error.strerror}; give another [HOST:]PORT"
            raise ConfigError("metrics", "address", str(address), remedy) from None
        host, port = self._server.server_address[:2]
        self.address = Address(str(host), int(port))
        self._thread = threading.Thread(target=self._server.serve, name="polymux-metrics", daemon=True)

    @property
    def url(self) -> str:
        """Where the metrics are."""
        return f"http://{self.address}{PATH}"

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop listening; requests that run are left to themselves."""
        self._server.end()
        if self._thread.ident is not None:
            self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, family: int, name: Any, metrics: Metrics) -> None:
        self.address_family = family
        self.metrics = metrics
        self.scraping = threading.Lock()
        self._places = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._ending = False
        super().__init__(name, _Handler)

    def serve(self) -> None:
        """Take connections until `end`; sleeps between them."""
        while not self._ending:
            self.handle_request()

    def end(self) -> None:
        """Wake the thread that sleeps in `serve` for the last time."""
        self._ending = True
        self.socket.shutdown(socket.SHUT_RDWR)

    def server_bind(self) -> None:
        """Bind without looking the host's name up, which may take long."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, if there are not too many."""
        if self._places.acquire(blocking=False):
            try:
                super().process_request(request, client_address)
            except BaseException:
                self._places.release()
                raise
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, and make place."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that goes away."""


class _Handler(BaseHTTPRequestHandler):
    timeout = IDLE_S
    server: _Server
    server_version = "polymux"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer with the metrics."""
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        """Answer with the head only."""
        self._answer(with_body=False)

    def _answer(self, with_body: bool) -> None:
        if self.path.partition("?")[0] != PATH:
            self._send(HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", f"GET {PATH}\n".encode(), with_body)
            return
        with self.server.scraping:  # one at a time asks the scheduler for a snapshot
            content_type, text = self.server.metrics.expose(self.headers.get("Accept"))
        self._send(HTTPStatus.OK, content_type, text, with_body)

    def _send(self, status: HTTPStatus, content_type: str, body: bytes, with_body: bool) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: a line for each scrape would be noise."""
