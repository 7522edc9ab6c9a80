"""A folder for files that others map or read as long as a process lives, and which goes with it, however it ends.

It is locked by its process. Folders without a lock are those of processes that were killed; the next one removes them.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import weakref
from pathlib import Path

PREFIX = "polymux-models-"


class ProcessFolder:
    """A new folder under the system's folder for temporary files (``TMPDIR``), until `close` or the process ends.

    Raises
    ------
    OSError
        If there is no room for one.
    """

    def __init__(self) -> None:
        remove_leftovers()
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
            fd = _lock(self.path)
            if fd is not None:  # else another process took it for a leftover, just now
                break
        self._end = weakref.finalize(self, _remove, self.path, fd, os.getpid())

    def new(self) -> Path:
        """Make a folder in it.

        Raises
        ------
        OSError
            If there is no room for one.
        """
        return Path(tempfile.mkdtemp(dir=self.path))

    def close(self) -> None:
        """Remove it; who has mapped a file goes on. Closing twice is fine."""
        self._end()


def remove_leftovers(parent: Path | None = None) -> int:
    """Remove the folders of processes that ended without doing so.

    Parameters
    ----------
    parent : pathlib.Path, optional
        Where they are; the system's folder for temporary files by default.

    Returns
    -------
    int
        How many there were.
    """
    removed = 0
    for path in (parent or Path(tempfile.gettempdir())).glob(PREFIX + "*"):
        fd = _lock(path)
        if fd is not None:
            shutil.rmtree(path, ignore_errors=True)
            os.close(fd)
            removed += 1
    return removed


def _lock(path: Path) -> int | None:
    """Lock a folder of this user that nobody else has locked; None: it cannot be."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if os.fstat(fd).st_uid == os.getuid():
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(fd), os.stat(path)):
                return fd
    except OSError:
        pass
    os.close(fd)
    return None


def _remove(path: Path, fd: int, pid: int) -> None:
    if os.getpid() == pid:  # not in a fork of the process that uses it
        shutil.rmtree(path, ignore_errors=True)
        os.close(fd)
