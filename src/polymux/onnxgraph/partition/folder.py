"""A folder for the files of cut models, which goes with the process that made it."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "polymux-parts-"


class PartsFolder:
    """A new folder under the system's folder for temporary files (``TMPDIR``), until `close`.

    Those of processes that were killed go when the next one is made.

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
        self._fd = fd

    def new(self) -> Path:
        """Make a folder in it."""
        return Path(tempfile.mkdtemp(dir=self.path))

    def close(self) -> None:
        """Remove it; sessions that have mapped the files go on. Closing twice is fine."""
        if self._fd >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._fd)
            self._fd = -1


def remove_leftovers(parent: Path | None = None) -> int:
    """Remove the folders of processes that ended without doing so; how many there were."""
    removed = 0
    for path in (parent or Path(tempfile.gettempdir())).glob(PREFIX + "*"):
        fd = _lock(path)
        if fd is not None:
            shutil.rmtree(path, ignore_errors=True)
            os.close(fd)
            removed += 1
    return removed


def _lock(path: Path) -> int | None:
    """Lock a folder of this user that no process has locked; None: it cannot be."""
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
