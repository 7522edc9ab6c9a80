"""A control socket whose other end is slow, malformed or gone."""

from __future__ import annotations

import os
import socket

import pytest

from polymux.core.errors import InvalidRequest
from polymux.server.connection import Connection, PeerGoneError, close_all
from polymux.server.protocol import MAX_MESSAGE_NBYTES, decode


def pair() -> tuple[Connection, socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return Connection(ours), theirs


def test_the_peer_is_who_the_system_says() -> None:
    connection, theirs = pair()
    assert (connection.peer.pid, connection.peer.uid) == (os.getpid(), os.getuid())
    theirs.close()


def test_nothing_there_is_no_message() -> None:
    connection, theirs = pair()
    assert connection.receive() is None
    theirs.close()


def test_a_closed_peer_is_gone() -> None:
    connection, theirs = pair()
    theirs.close()
    with pytest.raises(PeerGoneError):
        connection.receive()
    with pytest.raises(PeerGoneError):
        connection.send("ok", {})


def test_a_message_that_is_too_long_is_refused() -> None:
    connection, theirs = pair()
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    theirs.send(b"x" * (MAX_MESSAGE_NBYTES + 1))
    with pytest.raises(InvalidRequest, match="more than"):
        connection.receive()


def test_too_many_descriptors_are_refused_and_closed() -> None:
    connection, theirs = pair()
    reading, writing = os.pipe()
    socket.send_fds(theirs, [b"hello"], [writing] * 20)
    os.close(writing)
    with pytest.raises(InvalidRequest, match="descriptors"):
        connection.receive()
    os.set_blocking(reading, False)
    assert os.read(reading, 1) == b""  # nobody has the other end open any more
    os.close(reading)


def test_descriptors_come_with_their_message_and_are_not_inherited() -> None:
    connection, theirs = pair()
    reading, writing = os.pipe()
    socket.send_fds(theirs, [b"hello"], [writing])
    received = connection.receive()
    assert received is not None
    data, descriptors = received
    assert data == b"hello"
    assert not os.get_inheritable(descriptors[0])
    close_all([*descriptors, reading, writing])


def test_answers_wait_for_a_slow_reader_in_order() -> None:
    connection, theirs = pair()
    sent = 0
    while not connection.wants_to_send:
        connection.send("ok", {"id": sent, "text": "x" * 50_000})
        sent += 1
    seen = []
    for _ in range(sent):
        seen.append(int(decode(theirs.recv(100_000)).fields["id"]))
        connection.flush()
    assert seen == list(range(sent))
    assert not connection.wants_to_send


def test_a_reader_that_never_reads_is_given_up() -> None:
    connection, theirs = pair()

    def send_on() -> None:
        for _ in range(10_000):
            connection.send("ok", {"text": "x" * 50_000})

    with pytest.raises(PeerGoneError, match="unread"):
        send_on()
    connection.close()
    connection.close()
    theirs.close()
