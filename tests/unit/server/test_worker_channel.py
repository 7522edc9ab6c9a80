"""Frames between server and worker process, also when the worker is hostile or gone."""

from __future__ import annotations

import os
import socket
import struct

import pytest

from polymux.server.worker_channel import (
    ChannelClosedError,
    receive_answer,
    receive_order,
    send_answer,
    send_order,
)


@pytest.fixture
def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)


def test_an_order_arrives_with_its_descriptors(pair: tuple[socket.socket, socket.socket]) -> None:
    server, worker = pair
    reading, writing = os.pipe()
    send_order(server, ("foreign", [(4096, 8192)]), (writing,))
    order, descriptors = receive_order(worker)
    assert order == ("foreign", [(4096, 8192)])
    os.write(descriptors[0], b"x")
    assert os.read(reading, 1) == b"x"
    for descriptor in (reading, writing, *descriptors):
        os.close(descriptor)


def test_an_answer_arrives(pair: tuple[socket.socket, socket.socket]) -> None:
    server, worker = pair
    send_answer(worker, {"status": 0, "shapes": [[1, 2], [3]]})
    assert receive_answer(server) == {"status": 0, "shapes": [[1, 2], [3]]}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x01",
        struct.pack("<Q", 1 << 60),
        struct.pack("<Q", 4) + b"nope",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 100) + b"{}",
        struct.pack("<Q", 2) + b"\xff\xff",
    ],
)
def test_what_no_worker_sends_ends_the_channel(
    pair: tuple[socket.socket, socket.socket], data: bytes
) -> None:
    server, worker = pair
    worker.sendall(data)
    worker.close()
    with pytest.raises(ChannelClosedError):
        receive_answer(server)


def test_a_worker_that_is_gone_is_noticed(pair: tuple[socket.socket, socket.socket]) -> None:
    server, worker = pair
    worker.close()
    with pytest.raises(ChannelClosedError):
        send_order(server, ("run", 1, [], {}))
    server.close()


def test_a_server_that_is_gone_is_noticed(pair: tuple[socket.socket, socket.socket]) -> None:
    server, worker = pair
    server.close()
    with pytest.raises(ChannelClosedError):
        receive_order(worker)
