"""Results that processes share: arrays in files in memory (``/dev/shm``), by the digest of what made them.

Who begins with an item claims it, with a lock that ends with the process; the others do something else meanwhile, so
that jobs that want the same items at the same time divide the work.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import stat
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from polymux.core.errors import InvalidRequest
from polymux.inputs.stage import Results

__all__ = ["SharedStore"]

_log = logging.getLogger(__name__)

MIB = 1 << 20
CAPACITY_NBYTES = 256 * MIB
_PARTS = 16
"""After a sixteenth of the capacity has been written, old results are looked for."""
_SETTLED_NS = 100_000_000
"""A folder that was changed longer ago than this has another time of change after the next change."""
_CLAIM = ".claim"
_LOCK = ".lock"
_MEMBERS = ".members"


class SharedStore:
    """Results of input stages for all processes of one user.

    Parameters
    ----------
    folder : pathlib.Path, optional
        Where they are; by default a folder of this user in ``/dev/shm``.
    capacity_nbytes : int
        Bytes of all results together, about; the oldest are deleted.

    Notes
    -----
    From any thread. The folder is made with the first use, and deleted when the last process that uses it closes its
    store; what killed processes leave goes with the next one that is closed. Nothing is written as long as there is no
    other store. Where the folder cannot be used (no room, another user's folder) a warning is logged and nothing is
    shared.
    """

    def __init__(self, folder: Path | None = None, capacity_nbytes: int = CAPACITY_NBYTES) -> None:
        self._folder = folder or Path("/dev/shm") / f"polymux-{os.geteuid()}-inputs"
        self._capacity_nbytes = capacity_nbytes
        self._written_nbytes = 0
        self._lock: int | None = None
        self._member: tuple[Path, int] | None = None
        self._alone = (0, True)
        self._broken = False
        self._claims: dict[bytes, int] = {}
        self._joining = threading.Lock()

    def get(self, key: bytes, count: int) -> Results | None:
        """Return a result of so many arrays, mapped from the files and not to be written to; None: it is not there."""
        if not self._has_others():
            return None
        try:
            return tuple(
                np.asarray(np.load(self._place(key) / f"{index}.npy", mmap_mode="r"))
                for index in range(count)
            )
        except (OSError, ValueError, EOFError):  # not there, or being deleted
            return None

    def claim(self, key: bytes) -> bool:
        """Say that this process makes a result; False: another one is at it. True as well where nothing is shared."""
        self._has_others()
        if self._broken:
            return True
        try:
            claim = os.open(
                self._place(key).with_suffix(_CLAIM), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
            )
        except OSError as error:
            self._give_up(error)
            return True
        try:
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(claim)
            return False
        self._claims[key] = claim
        return True

    def release(self, key: bytes) -> None:
        """Take back a claim."""
        claim = self._claims.pop(key, None)
        if claim is not None:
            self._place(key).with_suffix(_CLAIM).unlink(missing_ok=True)
            os.close(claim)

    def put(self, key: bytes, results: Results) -> Results:
        """Give a result to all; return it as it lies in the store, or as it was given."""
        if not self._has_others():
            return results
        try:
            made = Path(tempfile.mkdtemp(dir=self._folder, prefix="."))
            try:
                for index, array in enumerate(results):
                    np.save(made / f"{index}.npy", array)
                made.rename(self._place(key))
            except OSError:
                shutil.rmtree(made, ignore_errors=True)
                if not self._place(key).is_dir():  # unless another process was faster
                    raise
            self._written_nbytes += sum(array.nbytes for array in results)
            if self._written_nbytes > self._capacity_nbytes // _PARTS:
                self._written_nbytes = 0
                self._make_room()
        except OSError as error:
            self._give_up(error)
            return results
        return self.get(key, len(results)) or results

    def close(self) -> None:
        """Let go of it; the last process that does so deletes all results."""
        for key in list(self._claims):
            self.release(key)
        lock, member, self._lock, self._member = self._lock, self._member, None, None
        self._broken = True
        if member is not None:
            member[0].unlink(missing_ok=True)
            os.close(member[1])
        if lock is None:
            return
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(self._folder, ignore_errors=True)
        except OSError:
            pass  # others use it
        finally:
            os.close(lock)

    def _place(self, key: bytes) -> Path:
        return self._folder / key.hex()

    def _has_others(self) -> bool:
        """Whether somebody is there to share with."""
        if self._broken:
            return False
        try:
            if self._lock is None:
                self._join()
            members = self._folder / _MEMBERS
            changed_ns = members.stat().st_mtime_ns
            if changed_ns != self._alone[0]:
                settled = time.time_ns() - changed_ns > _SETTLED_NS
                self._alone = (changed_ns if settled else 0, len(os.listdir(members)) < 2)
        except (OSError, InvalidRequest) as error:
            self._give_up(error)
            return False
        return not self._alone[1]

    def _join(self) -> None:
        with self._joining:
            if self._lock is not None:
                return
            lock = self._locked()
            members = self._folder / _MEMBERS
            members.mkdir(mode=0o700, exist_ok=True)
            for other in members.iterdir():
                if _is_left_behind(other):
                    other.unlink(missing_ok=True)
            member, text = tempfile.mkstemp(dir=self._folder, prefix=".")
            fcntl.flock(member, fcntl.LOCK_EX)  # before others can see it
            self._member = Path(text).rename(members / Path(text).name), member
            self._lock = lock

    def _locked(self) -> int:
        """Make the folder, and keep it from being deleted."""
        while True:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            found = self._folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
                raise InvalidRequest(f"{self._folder} is not a folder of this user alone; delete it")
            try:
                lock = os.open(self._folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:
                continue  # the last one before deletes it just now
            fcntl.flock(lock, fcntl.LOCK_SH)
            if os.fstat(lock).st_nlink:
                return lock
            os.close(lock)

    def _give_up(self, error: Exception) -> None:
        if not self._broken:
            self._broken = True
            _log.warning("results of input stages are shared in this process only: %s", error)

    def _make_room(self) -> None:
        found: list[tuple[float, int, str]] = []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if not entry.name.startswith(".") and entry.is_dir():
                        nbytes = sum(file.stat().st_size for file in os.scandir(entry.path))
                        found.append((entry.stat().st_mtime, nbytes, entry.path))
        excess = sum(nbytes for _, nbytes, _ in found) - self._capacity_nbytes
        for _, nbytes, path in sorted(found):
            if excess <= 0:
                break
            shutil.rmtree(path, ignore_errors=True)
            excess -= nbytes


def _is_left_behind(member: Path) -> bool:
    """Whether the process that made this file is gone: its lock went with it."""
    try:
        opened = os.open(member, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(opened)
    return True
