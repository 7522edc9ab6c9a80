"""The control protocol's text: one operation or answer, then one `key value` line per field."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from polymux.core.errors import InvalidRequest

MAX_MESSAGE_NBYTES = 128 * 1024
MAX_DESCRIPTORS = 4
MAX_CARRIED_NBYTES = 64 << 20
MAX_FIELDS = 64
INLINE_NBYTES = 60_000
"""A longer message travels in a memfd: `carried N` is sent in its place, with the descriptor."""

_KEY = re.compile(r"[a-z][a-z0-9_]{0,63}")
_ESCAPES = {"%": "%25", "\n": "%0A", "\r": "%0D"}
_CHARACTERS = {escape: character for character, escape in _ESCAPES.items()}
_ESCAPED = re.compile(r"[%\n\r]")
_PERCENT = re.compile(r"%(.{0,2})", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Message:
    """One request or answer.

    Parameters
    ----------
    head : str
        The operation's name, or `ok` or `error`.
    fields : mapping of str to str
        Its fields.
    """

    head: str
    fields: Mapping[str, str] = field(default_factory=dict)


def encode(head: str, fields: Mapping[str, object]) -> bytes:
    """Text of a message, UTF-8.

    Raises
    ------
    InvalidRequest
        When the head or a key is not a lower-case word.
    """
    lines = [_checked_key(head)]
    lines += [f"{_checked_key(key)} {_ESCAPED.sub(_escape, str(value))}" for key, value in fields.items()]
    return "\n".join(lines).encode()


def decode(data: bytes) -> Message:
    """Read a message, which may come from anybody.

    Raises
    ------
    InvalidRequest
        Names the line that is wrong.
    """
    if data.count(b"\n") > MAX_FIELDS:  # before millions of lines become objects
        raise InvalidRequest(f"the message has more than {MAX_FIELDS} lines behind the first")
    try:
        lines = data.decode().split("\n")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the message is not UTF-8: {error}") from None
    fields: dict[str, str] = {}
    for line in lines[1:]:
        key, _, value = line.partition(" ")
        if _checked_key(key) in fields:
            raise InvalidRequest(f"the message gives {key!r} twice; give it once")
        fields[key] = _PERCENT.sub(_unescape, value)
    return Message(_checked_key(lines[0]), fields)


def carry(data: bytes) -> tuple[bytes, int] | None:
    """Put a long message into a memfd.

    Returns
    -------
    (data, descriptor) or None
        What to send in its place and the memfd, which goes first and is the caller's; None for a short message.
    """
    if len(data) <= INLINE_NBYTES:
        return None
    descriptor = os.memfd_create("polymux-message", os.MFD_CLOEXEC)
    try:
        done = 0
        while done < len(data):
            done += os.write(descriptor, data[done:])
    except BaseException:
        os.close(descriptor)
        raise
    return f"carried {len(data)}".encode(), descriptor


def carried(data: bytes, descriptors: list[int]) -> bytes:
    """Undo `carry`; takes the memfd off the list and closes it.

    Raises
    ------
    InvalidRequest
        When the length or the descriptor is missing or wrong.
    """
    if not data.startswith(b"carried "):
        return data
    nbytes = parse_int("carried", data[8:40].decode(errors="replace"), 0, MAX_CARRIED_NBYTES)
    if not descriptors:
        raise InvalidRequest(f"a message of {nbytes} bytes is announced but no descriptor came along")
    descriptor = descriptors.pop(0)
    try:
        fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)  # fails on all but a memfd: reading one cannot block
        text = os.pread(descriptor, nbytes, 0)
    except OSError as error:
        raise InvalidRequest(f"a message of {nbytes} bytes cannot be read: {error}; send a memfd") from None
    finally:
        os.close(descriptor)
    if len(text) != nbytes:
        raise InvalidRequest(f"a message of {nbytes} bytes is announced, its memfd holds {len(text)}")
    return text


def parse_int(key: str, text: str | None, lowest: int, highest: int) -> int:
    """Whole number of a field, checked.

    Raises
    ------
    InvalidRequest
        Names the field, the value and the range.
    """
    if text is None:
        raise InvalidRequest(f"the field {key!r} is missing; give a whole number from {lowest} to {highest}")
    try:
        value = int(text) if len(text) <= 24 else None
    except ValueError:
        value = None
    if value is None or not lowest <= value <= highest:
        raise InvalidRequest(f"{key} is {text[:40]!r}; it must be a whole number from {lowest} to {highest}")
    return value


def _checked_key(key: str) -> str:
    if _KEY.fullmatch(key) is None:
        raise InvalidRequest(
            f"{key[:40]!r} is not an operation or field name (lower-case letters, digits, _)"
        )
    return key


def _escape(match: re.Match[str]) -> str:
    return _ESCAPES[match.group()]


def _unescape(match: re.Match[str]) -> str:
    character = _CHARACTERS.get(match.group().upper())
    if character is None:
        raise InvalidRequest(f"{match.group()!r} is not an escape of this protocol (%25, %0A or %0D)")
    return character
