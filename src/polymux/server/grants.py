"""Buffers that one application lets others have: a token names a memfd whose pages both have in their segments."""

from __future__ import annotations

import os
import secrets
import threading
from dataclasses import dataclass, field
from fcntl import F_ADD_SEALS, F_SEAL_GROW, F_SEAL_SEAL, F_SEAL_SHRINK, fcntl

from polymux.core.dtype import DType
from polymux.core.errors import Closed, InvalidRequest
from polymux.segment import SegmentError
from polymux.server.placement import HOST, READ, Home, Want
from polymux.server.residency import Residency
from polymux.server.session import Session

PAGE_NBYTES = 4096


@dataclass(slots=True, eq=False)
class Grant:
    """One exported buffer."""

    token: str
    home: Home
    nbytes: int
    dtype: int
    shape: tuple[int, ...]
    fd: int
    homes: list[Home] = field(default_factory=list)
    """The exporter's and the importers'; any of them that lives stands for the buffer."""


class Grants:
    """All grants of a server; thread-safe. What may take long is done outside the lock."""

    def __init__(self, residency: Residency) -> None:
        self._residency = residency
        self._lock = threading.Lock()
        self._by_token: dict[str, Grant] = {}

    def export(self, session: Session, slot: int, generation: int) -> Grant:
        """Move a buffer's bytes into a memfd of their own, put it under the buffer, and make a token for it.

        Raises
        ------
        InvalidRequest
            If the buffer is none, imported, or does not lie on pages of its own.
        """
        known = self._known(session, slot, generation)
        if known is not None:
            return known
        offset, nbytes, dtype, shape = _buffer(session, slot, generation)
        if offset % PAGE_NBYTES or nbytes % PAGE_NBYTES:
            raise InvalidRequest(
                f"buffer {slot} ({nbytes} bytes at {offset}) is not on pages of its own;"
                " allocate it with shareable=True"
            )
        session.check_shareable(slot, offset, nbytes)
        home = session.home(slot, generation, offset)
        self._residency.acquire(HOST, [Want(home, nbytes, READ)])
        fd = _sealed_copy(session, offset, nbytes)
        grant = Grant(secrets.token_hex(16), home, nbytes, dtype, shape, fd, [home])
        try:
            with self._lock:
                return self._enter(session, grant)
        finally:
            if self._by_token.get(grant.token) is not grant:
                os.close(fd)

    def find(self, token: str) -> Grant:
        """Look a token up.

        Raises
        ------
        InvalidRequest
            If it was never given, was revoked, or its owner has ended.
        """
        grant = self._by_token.get(token)
        if grant is None:
            raise InvalidRequest(f"token {token[:40]!r} is no grant (any more); ask its owner for a new one")
        return grant

    def import_(self, session: Session, token: str, offset: int, slot: int, generation: int) -> Grant:
        """Put a grant's pages under a range of another segment.

        Raises
        ------
        InvalidRequest
            If the token is none, or the range does not hold the grant in whole pages.
        """
        with self._lock:
            _check_lives(session)
            grant = self.find(token)
            if offset % PAGE_NBYTES:
                raise InvalidRequest(f"offset {offset} is not the beginning of a page")
            session.check_shareable(slot, offset, grant.nbytes)
            try:
                session.segment.map_foreign(offset, grant.nbytes, grant.fd)
            except SegmentError as error:
                raise InvalidRequest(str(error)) from None
            home = session.home(slot, generation, offset)
            grant.homes = [other for other in grant.homes if self._residency.is_shared(other)]
            if not any(self._residency.join(other, home) for other in grant.homes):
                session.segment.unmap_foreign(offset, grant.nbytes)
                raise InvalidRequest(f"the buffer of token {token[:40]!r} is gone")
            grant.homes.append(home)
            session.add_foreign(slot, generation, offset, grant.nbytes, grant.fd)
            return grant

    def unshare(self, session: Session, slot: int, generation: int) -> None:
        """Put the segment's own pages under a range again; an exporter's grant ends with that.

        Raises
        ------
        InvalidRequest
            If the buffer is neither exported nor imported.
        """
        self._residency.forget_when_still(session.home(slot, generation, 0).key, generation)
        with self._lock:
            _check_lives(session)
            foreign = session.foreign.get(slot)
            if foreign is None or foreign.generation != generation:
                raise InvalidRequest(f"buffer {slot} is neither exported nor imported")
            token = session.tokens.pop((slot, generation), None)
            if token is not None:
                self._end(token)
            session.segment.unmap_foreign(foreign.offset, foreign.nbytes)
            session.remove_foreign(slot)

    def revoke(self, session: Session, token: str) -> None:
        """Let nobody import it any more; whoever has, keeps it.

        Raises
        ------
        InvalidRequest
            If it is no grant of this session.
        """
        with self._lock:
            key = next((key for key, known in session.tokens.items() if known == token), None)
            if key is None:
                raise InvalidRequest(f"token {token[:40]!r} is no grant of this session")
            del session.tokens[key]
            self._end(token)

    def forget_session(self, session: Session) -> None:
        """End all grants of a session."""
        with self._lock:
            for token in session.tokens.values():
                self._end(token)
            session.tokens.clear()
            session.close_descriptors()

    def __len__(self) -> int:
        """Count the grants."""
        return len(self._by_token)

    def _known(self, session: Session, slot: int, generation: int) -> Grant | None:
        with self._lock:
            token = session.tokens.get((slot, generation))
            if token is not None:
                return self._by_token[token]
            foreign = session.foreign.get(slot)
            if foreign is not None and foreign.generation == generation:
                raise InvalidRequest(f"buffer {slot} was imported or revoked; it cannot be exported (again)")
            return None

    def _enter(self, session: Session, grant: Grant) -> Grant:
        _check_lives(session)
        home = grant.home
        key = (home.slot, home.generation)
        if key in session.tokens:  # two threads of the client have exported it at once
            return self._by_token[session.tokens[key]]
        session.check_shareable(home.slot, home.offset, grant.nbytes)
        session.segment.map_foreign(home.offset, grant.nbytes, grant.fd)
        session.add_foreign(home.slot, home.generation, home.offset, grant.nbytes, grant.fd)
        self._residency.make_shared(home, grant.nbytes)
        session.tokens[key] = grant.token
        self._by_token[grant.token] = grant
        return grant

    def _end(self, token: str) -> None:
        grant = self._by_token.pop(token, None)
        if grant is not None:
            os.close(grant.fd)


def describe(grant: Grant) -> dict[str, object]:
    """Say what an importer has to know."""
    shape = ",".join(str(extent) for extent in grant.shape)
    return {"nbytes": grant.nbytes, "dtype": DType(grant.dtype).value, "shape": shape}


def _check_lives(session: Session) -> None:
    if session.ended:
        raise Closed(f"session {session.id} has ended")


def _buffer(session: Session, slot: int, generation: int) -> tuple[int, int, int, tuple[int, ...]]:
    try:
        return tuple(session.segment.buffer(slot, generation))  # type: ignore[return-value]
    except SegmentError as error:
        raise InvalidRequest(str(error)) from None


def _sealed_copy(session: Session, offset: int, nbytes: int) -> int:
    fd = os.memfd_create("polymux-grant", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, nbytes)
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
        content = session.segment.view(offset, nbytes).data
        done = 0
        while done < nbytes:
            done += os.pwrite(fd, content[done:], done)
    except BaseException:
        os.close(fd)
        raise
    return fd
