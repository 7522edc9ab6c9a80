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
    Usable from any thread. One thing is made at a time; whoever wants another one meanwhile waits.
    """

    def __init__(self) -> None:
        self._things: weakref.WeakValueDictionary[Hashable, Thing] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], Thing]) -> Thing:
        """Return the thing of this key, made now unless somebody holds it."""
        with self._lock:
            thing = self._things.get(key)
            if thing is None:
                thing = make()
                self._things[key] = thing
        return thing


def file_identity(path: str) -> tuple[Hashable, ...]:
    """Tell one file content from another: a file that was replaced on disk is a new one."""
    try:
        status = os.stat(path)
    except OSError:
        return (path,)
    return (os.path.realpath(path), status.st_mtime_ns, status.st_size)
