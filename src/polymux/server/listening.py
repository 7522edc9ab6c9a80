"""Takes the server's socket path: replaces what a dead server left, refuses to displace a living one."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
from pathlib import Path

from polymux.core.errors import InvalidRequest, PermissionDenied, PolymuxError


class AddressInUseError(PolymuxError):
    """Another server lives at this path."""


class Listener:
    """A listening SOCK_SEQPACKET socket at a path, which it removes when it closes.

    Parameters
    ----------
    path : Path
        Missing folders are made with mode 0700.

    Raises
    ------
    AddressInUseError
        A living server listens there.
    InvalidRequest
        The path is too long or holds something that is no socket.
    PermissionDenied
        The folder belongs to somebody else or cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        _prepare_folder(path)
        self._lock = _take_lock(path)
        try:
            _remove_stale(path)
            self._listen(path)
        except BaseException:
            os.close(self._lock)
            raise

    def _listen(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self.socket.bind(str(path))
            self.socket.listen(128)
            self.socket.setblocking(False)
            self._inode = os.stat(path).st_ino
        except OSError as error:
            self.socket.close()
            if error.errno == errno.EADDRINUSE:
                raise AddressInUseError(_in_use(path)) from None
            raise _explained(path, error) from None

    def allow_everybody(self) -> None:
        """Let other users reach the socket; the peer's user id decides about each of them."""
        os.chmod(self.path, 0o666)

    def close(self) -> None:
        """Stop listening and remove the socket's file, if it is still this one's."""
        self.socket.close()
        with contextlib.suppress(OSError):
            if os.stat(self.path).st_ino == self._inode:
                os.unlink(self.path)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _prepare_folder(path: Path) -> None:
    folder = path.parent
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = os.stat(folder)
    except OSError as error:
        raise _explained(path, error) from None
    others_write = owner.st_mode & 0o002 and not owner.st_mode & stat.S_ISVTX
    if owner.st_uid not in (os.getuid(), 0) or others_write:
        raise PermissionDenied(
            f"{folder} belongs to user {owner.st_uid} with mode {stat.S_IMODE(owner.st_mode):04o}, where others"
            " could replace the socket; choose another --socket"
        )


def _take_lock(path: Path) -> int:
    """Hold a lock beside the socket as long as the server lives, so that two that start at once do not race."""
    try:
        descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise _explained(path, error) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise AddressInUseError(_in_use(path)) from None
    return descriptor


def _remove_stale(path: Path) -> None:
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise InvalidRequest(f"{path} exists and is no socket; remove it or choose another --socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            return
        except FileNotFoundError:
            return
        except BlockingIOError:
            pass  # alive, its queue of connections is full
        except OSError as error:
            raise _explained(path, error) from None
    raise AddressInUseError(_in_use(path))


def _in_use(path: Path) -> str:
    return f"a server is already running at {path}; stop it with 'polymux down' or choose another --socket"


def _explained(path: Path, error: OSError) -> PolymuxError:
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return PermissionDenied(f"cannot make the socket {path}: {error.strerror}; choose another --socket")
    return InvalidRequest(f"cannot make the socket {path}: {error}; choose another --socket")
