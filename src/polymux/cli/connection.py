"""How commands reach a running server: where its socket is, and one request over it."""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polymux.core.errors import NoServer, ServerGone, request_failed
from polymux.segment import default_socket_path
from polymux.server.connection import close_all
from polymux.server.protocol import MAX_DESCRIPTORS, MAX_MESSAGE_NBYTES, carried, decode, encode


def add_socket_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--socket``."""
    parser.add_argument(
        "--socket",
        metavar="PATH",
        type=Path,
        help=f"socket of the server (default: $POLYMUX_SOCKET, else {default_socket_path()})",
    )


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--json``."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def socket_path(options: argparse.Namespace) -> Path:
    """Path of the server's socket: as given, else from the environment."""
    return options.socket or Path(default_socket_path())


class AdminConnection:
    """A connection without a session, for requests of the operator.

    Parameters
    ----------
    path : Path

    Raises
    ------
    NoServer
        If no server listens there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._socket.connect(os.fspath(path))
        except OSError as error:
            self._socket.close()
            if isinstance(error, FileNotFoundError | ConnectionRefusedError):
                raise NoServer(f"no server runs at {path}; start one with 'polymux up'") from None
            raise NoServer(f"the server at {path} cannot be reached: {error}") from None

    def request(self, operation: str, fields: Mapping[str, object] | None = None) -> Mapping[str, str]:
        """Make a request and wait for its answer.

        Raises
        ------
        PolymuxError
            What the server answers, or `ServerGone`.
        """
        try:
            self._socket.sendall(encode(operation, {"id": 1, **(fields or {})}))
            data, descriptors, _, _ = socket.recv_fds(self._socket, MAX_MESSAGE_NBYTES, MAX_DESCRIPTORS)
        except OSError as error:
            raise ServerGone(f"the server at {self.path} is gone: {error}") from None
        try:
            if not data:
                raise ServerGone(f"the server at {self.path} has closed the connection")
            message = decode(carried(data, descriptors))
        finally:
            close_all(descriptors)
        if message.head != "ok":
            raise request_failed(message.fields.get("code", ""), message.fields.get("message", "it failed"))
        return message.fields

    def request_json(self, operation: str) -> Any:
        """Make a request that is answered with data."""
        return json.loads(self.request(operation)["json"])

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def __enter__(self) -> AdminConnection:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def ask(options: argparse.Namespace, operation: str) -> Any:
    """Connect, ask for data, and return it."""
    with AdminConnection(socket_path(options)) as connection:
        return connection.request_json(operation)


def print_json(value: Any) -> None:
    """Print data for programs."""
    json.dump(value, sys.stdout, indent=2)
    print()
