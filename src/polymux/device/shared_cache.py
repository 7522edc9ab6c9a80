"""Things that are costly to make and shared while anybody uses them."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Thing = TypeVar("Thing")


class SharedCache(Generic[Thing]):
    """Makes a thing once and hands it out while somebody holds it; forgets it with the last holder.

    Notes
    -----
    Usable from any thread. Whoever wants a thing that is being made waits for it, and nobody else does.
    """

    def __init__(self) -> None:
        self._things: weakref.WeakValueDictionary[Hashable, Thing] = weakref.WeakValueDictionary()
        self._making: dict[Hashable, _Making] = {}
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], Thing]) -> Thing:
        """Return the thing of this key, made now unless somebody holds it."""
        with self._lock:
            thing = self._things.get(key)
            if thing is not None:
                return thing
            making = self._making.setdefault(key, _Making())
            making.wanted += 1
        try:
            with making.turn:
                return self._get(key, make)
        finally:
            with self._lock:
                making.wanted -= 1
                if not making.wanted:
                    del self._making[key]

    def things(self) -> list[Thing]:
        """List what somebody holds now."""
        with self._lock:
            return list(self._things.values())

    def _get(self, key: Hashable, make: Callable[[], Thing]) -> Thing:
        with self._lock:
            thing = self._things.get(key)
        if thing is None:
            thing = make()
            with self._lock:
                self._things[key] = thing
        return thing


class _Making:
    """Whose turn it is to make a thing, and how many want it."""

    def __init__(self) -> None:
        self.turn = threading.Lock()
        self.wanted = 0


def file_identity(path: str) -> tuple[Hashable, ...]:
    """Tell one file content from another: a file that was replaced on disk is a new one."""
    try:
        status = os.stat(path)
    except OSError:
        return (path,)
    return (os.path.realpath(path), status.st_mtime_ns, status.st_size)
