"""Frames between the server and a worker process: a length, descriptors beside it, and the bytes.

The server sends pickles to the worker, which trusts it; the worker answers in JSON, since it runs an application's
code and is trusted with nothing.
"""

from __future__ import annotations

import json
import pickle
import socket
import struct
from collections.abc import Sequence
from typing import Any

_LENGTH = struct.Struct("<Q")
MAX_ANSWER_NBYTES = 1 << 20
MAX_DESCRIPTORS = 64


class ChannelClosedError(Exception):
    """The other end is gone."""


def send_order(sock: socket.socket, order: object, descriptors: Sequence[int] = ()) -> None:
    """Send an order to a worker.

    Raises
    ------
    ChannelClosedError
        The worker is gone.
    """
    data = pickle.dumps(order, protocol=pickle.HIGHEST_PROTOCOL)
    try:
        socket.send_fds(sock, [_LENGTH.pack(len(data))], list(descriptors), socket.MSG_NOSIGNAL)
        sock.sendall(data, socket.MSG_NOSIGNAL)
    except OSError as error:
        raise ChannelClosedError(str(error)) from None


def receive_order(sock: socket.socket) -> tuple[Any, list[int]]:
    """Receive an order in the worker.

    Raises
    ------
    ChannelClosedError
        The server is gone.
    """
    header, descriptors, _, _ = socket.recv_fds(sock, _LENGTH.size, MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
    if not header:
        raise ChannelClosedError("the server has closed the channel")
    header += _receive(sock, _LENGTH.size - len(header))
    return pickle.loads(_receive(sock, _LENGTH.unpack(header)[0])), descriptors


def send_answer(sock: socket.socket, answer: dict[str, Any]) -> None:
    """Send an answer to the server."""
    data = json.dumps(answer).encode()
    sock.sendall(_LENGTH.pack(len(data)) + data)


def receive_answer(sock: socket.socket) -> dict[str, Any]:
    """Receive an answer from a worker.

    Raises
    ------
    ChannelClosedError
        The worker is gone, or sends what no worker sends.
    """
    nbytes = _LENGTH.unpack(_receive(sock, _LENGTH.size))[0]
    if nbytes > MAX_ANSWER_NBYTES:
        raise ChannelClosedError(f"the worker announces an answer of {nbytes} bytes")
    try:
        answer = json.loads(_receive(sock, nbytes))
    except (ValueError, RecursionError) as error:
        raise ChannelClosedError(f"the worker's answer is no JSON: {error}") from None
    if not isinstance(answer, dict):
        raise ChannelClosedError("the worker's answer is no JSON object")
    return answer


def _receive(sock: socket.socket, nbytes: int) -> bytes:
    data = bytearray(nbytes)
    view = memoryview(data)
    while view:
        try:
            count = sock.recv_into(view)
        except OSError as error:
            raise ChannelClosedError(str(error)) from None
        if count == 0:
            raise ChannelClosedError("closed by the other end")
        view = view[count:]
    return bytes(data)
