"""The control protocol's text, also when somebody else wrote it."""

from __future__ import annotations

import contextlib
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymux.core.errors import InvalidRequest
from polymux.server.protocol import INLINE_NBYTES, carried, carry, decode, encode, parse_int

keys = st.from_regex(r"\A[a-z][a-z0-9_]{0,20}\Z")
values = st.text(st.characters(exclude_categories=["Cs"]))


@given(head=keys, fields=st.dictionaries(keys, values))
def test_a_message_is_read_as_it_was_written(head: str, fields: dict[str, str]) -> None:
    message = decode(encode(head, fields))
    assert (message.head, message.fields) == (head, fields)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_refused_by_name(data: bytes) -> None:
    with contextlib.suppress(InvalidRequest):
        decode(data)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\xff\xfe", "not UTF-8"),
        (b"", "not an operation"),
        (b"Hello", "'Hello'"),
        (b"hello\nKEY 1", "'KEY'"),
        (b"hello\na 1\na 2", "'a' twice"),
        (b"hello\na %zz", "'%zz'"),
        (b"hello\na %4", "'%4'"),
        (b"hello\n", "not an operation"),
    ],
)
def test_a_malformed_message_is_refused_with_what_is_wrong(data: bytes, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        decode(data)


def test_an_empty_value_needs_no_blank() -> None:
    assert decode(b"queue_open\ndevice\nname x").fields == {"device": "", "name": "x"}


def test_a_long_message_travels_in_a_memfd() -> None:
    data = encode("ok", {"json": "x" * INLINE_NBYTES})
    found = carry(data)
    assert found is not None
    short, descriptor = found
    descriptors = [descriptor]
    assert carried(short, descriptors) == data
    assert descriptors == []
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_a_short_message_travels_as_it_is() -> None:
    assert carry(b"ok") is None
    assert carried(b"ok", []) == b"ok"


@pytest.mark.parametrize("announced", [b"carried 10", b"carried 99999999999", b"carried x", b"carried -1"])
def test_a_carried_message_without_its_memfd_or_length_is_refused(announced: bytes) -> None:
    with pytest.raises(InvalidRequest):
        carried(announced, [])


def test_a_carried_message_in_anything_but_a_memfd_is_refused_and_closed() -> None:
    reading, writing = os.pipe()
    with pytest.raises(InvalidRequest, match="send a memfd"):
        carried(b"carried 10", [reading])
    os.close(writing)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(reading)


def test_a_carried_message_that_is_shorter_than_announced_is_refused() -> None:
    descriptor = os.memfd_create("short")
    os.write(descriptor, b"abc")
    with pytest.raises(InvalidRequest, match="holds 3"):
        carried(b"carried 10", [descriptor])


@pytest.mark.parametrize("text", [None, "", "1.5", "x", "11", "-1", "9" * 30, "1e3"])
def test_a_number_out_of_range_is_refused_with_the_range(text: str | None) -> None:
    with pytest.raises(InvalidRequest, match="from 0 to 10"):
        parse_int("slot", text, 0, 10)


def test_a_message_of_many_lines_is_refused_whatever_they_say() -> None:
    with pytest.raises(InvalidRequest, match="more than 64 lines"):
        decode(b"status" + b"\n\xff" * 65)
    assert len(decode(b"status" + b"".join(b"\nk%d v" % n for n in range(64))).fields) == 64
