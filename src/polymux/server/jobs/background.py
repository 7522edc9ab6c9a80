"""Jobs in the background: whoever else wants a core has it at once, whatever group the kernel counts him in.

The kernel shares the cores between groups of processes first: control groups and, in the uppermost of these, sessions,
unless that is off (``sched_autogroup_enabled``). SCHED_IDLE is about the threads of one group. So it is the group of a
job that has to come last: one that is made for it, its own where nobody else is in it, or its session.

References
----------
sched(7), "The autogroup feature" and SCHED_IDLE; cgroups(7); ``cpu.idle`` in the kernel's
``Documentation/admin-guide/cgroup-v2.rst``.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

LAST = 19
"""The nice value of a session in the background."""
PATH_NBYTES = 256
"""Of a path that the guard takes, with the zero at its end."""
_PASSES = 4
"""How often the processes of a job are looked for: one that has not been moved may start another."""
_PATIENCE_S, _PAUSE_S = 1.0, 0.02
"""How long, and how often, a session is changed anew that the kernel does not let change yet."""
_ENDED = frozenset((errno.ENOENT, errno.ESRCH, errno.ENODEV, errno.EBUSY))
"""Errors that say that a job has ended, or is ending: the guard removes its control group then."""
_NAME = re.compile(r"polymux-job-(?P<job>\d+)-(?P<space>\d+)-(?P<server>\d+)-\d+")
_numbers = itertools.count(1)
_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")

Members = Callable[[], Iterable[int]]
"""Lists the processes of a job, by their ids."""


class Way(IntEnum):
    """What is done to a group; the numbers are the guard's as well."""

    MADE = 1
    """A control group is made for the job, below the one in which it is."""
    OWN = 2
    """The control group in which it is, and nobody else, comes last."""
    SESSION = 3
    """Its session, in which nobody else is, comes last."""

    @property
    def text(self) -> str:
        """Say what comes last."""
        return "session" if self is Way.SESSION else "control group"


@dataclass(frozen=True, slots=True)
class Background:
    """A way to put a job into the background, and how that is undone; `find_backgrounds` finds them.

    Attributes
    ----------
    way : Way
    path : str
        The control group's directory, or the file of the session's nice value.
    before : int
        What that file said, or the weight of the control group; 0 where there is none.
    session : int
        The id of the session.
    """

    way: Way
    path: str
    before: int = 0
    session: int = 0

    def enter(self, members: Members) -> bool:
        """Have the job come after all others; False when the kernel refuses, and nothing is changed.

        Notes
        -----
        The kernel lets sessions be changed ten times a second; it is tried again for up to a second.
        """
        try:
            if self.way is Way.SESSION:
                return _until_taken(lambda: Path(self.path).write_text(str(LAST)), _PATIENCE_S)
            if self.way is Way.OWN:
                _write(Path(self.path) / "cpu.idle", 1)
            else:
                _gather(Path(self.path), members)
        except OSError:
            if self.way is Way.MADE:
                self.leave()
            return False
        return True

    def leave(self, patience_s: float = 0.0, proc: Path = _PROC) -> bool:
        """Put the job back; False when the kernel may take it later and has not within that time.

        What has ended meanwhile, or was never done, is no error; anything else is told.
        """
        try:
            if self.way is Way.SESSION:
                return _until_taken(lambda: self._put_session_back(proc), patience_s)
            if self.way is Way.OWN:
                _write(Path(self.path) / "cpu.idle", 0)
                if self.before:  # to be idle has cost the group its weight
                    _write(_weight_file(Path(self.path)), self.before)
            else:
                _dissolve(Path(self.path))
        except OSError as error:
            if error.errno not in _ENDED:
                print(f"polymux: {self.path} cannot be put back: {error.strerror}", flush=True)
        return True

    def _put_session_back(self, proc: Path) -> None:
        """Write the nice value through any process of the session that lives, if it is still the one of here."""
        rest = (proc / str(pid) / "autogroup" for pid in _processes_of_session(self.session, proc))
        for file in (Path(self.path), *rest):
            try:
                if int(file.read_text().split()[-1]) == LAST:
                    file.write_text(str(self.before))
                    return
            except (OSError, IndexError, ValueError) as error:
                if isinstance(error, OSError) and error.errno not in _ENDED:
                    raise


def _until_taken(write: Callable[[], object], patience_s: float) -> bool:
    """Write, again and again while the kernel says that it is too early."""
    end = time.monotonic() + patience_s
    while True:
        try:
            write()
        except BlockingIOError:
            if time.monotonic() >= end:
                return False
            time.sleep(_PAUSE_S)
        else:
            return True


def find_backgrounds(
    pid: int, members: Members, proc: Path = _PROC, cgroups: Path = _CGROUPS
) -> tuple[Background, ...]:
    """Find how a job may be put into the background, the best way first; nothing where others are in its group.

    Parameters
    ----------
    pid : int
        Of the job's first process.
    members : callable
    proc, cgroups : pathlib.Path
        Where the kernel has its files.

    Notes
    -----
    What the kernel takes is known only when it is tried.
    """
    found = []
    try:
        group, root, can_hold_groups = _group_of(pid, proc, cgroups)
        if group != root and _is_own(group, members):
            found.append(Background(Way.OWN, str(group), _weight(group)))
        if can_hold_groups and os.access(group, os.W_OK):
            found.append(Background(Way.MADE, str(group / _new_name(pid))))
        if group == root and (session := _session(pid, members, proc)) is not None:
            found.append(session)
    except (OSError, ValueError, StopIteration):  # files of the kernel are missing, or it is gone
        pass
    return tuple(way for way in found if len(os.fsencode(way.path)) < PATH_NBYTES)


def sweep(cgroups: Path = _CGROUPS) -> None:
    """Remove control groups that servers made which have ended, and whose guards were killed as well."""
    root = next((cgroups / name for name in ("cpu", "cpu,cpuacct") if (cgroups / name).is_dir()), cgroups)
    for folder, names, _ in os.walk(root):
        for name in names:
            made = _NAME.fullmatch(name)
            if made is not None and made["space"] == _pid_space() and _has_ended(int(made["server"])):
                with contextlib.suppress(OSError):  # its guard is at it, or it is another user's
                    _dissolve(Path(folder) / name)


def _new_name(pid: int) -> str:
    return f"polymux-job-{pid}-{_pid_space()}-{os.getpid()}-{next(_numbers)}"


def _pid_space() -> str:
    """Tell the servers of different containers apart, whose process ids say nothing to each other."""
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        return "0"


def _has_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass
    return False


def _weight_file(group: Path) -> Path:
    file = group / "cpu.weight"
    return file if file.exists() else group / "cpu.shares"


def _weight(group: Path) -> int:
    file = _weight_file(group)
    return int(file.read_text()) if file.exists() else 0


def _write(file: Path, number: int) -> None:
    with open(file, "r+") as there:  # one that is not there is not made
        there.truncate()
        there.write(str(number))


def shares_group(pid: int, proc: Path = _PROC, cgroups: Path = _CGROUPS) -> bool:
    """Whether the kernel shares the cores between the threads of a process and of this one as within one group."""
    own = os.getpid()
    try:
        group, root, _ = _group_of(pid, proc, cgroups)
        if group != _group_of(own, proc, cgroups)[0]:
            return False
        return group != root or not _has_sessions(proc) or os.getsid(pid) == os.getsid(own)
    except (OSError, ValueError, StopIteration):  # it has just ended, or this kernel has no such groups
        return (proc / str(pid)).exists()


def is_beside(background: Background, proc: Path = _PROC, cgroups: Path = _CGROUPS) -> bool:
    """Whether a job in the background comes after this process, too, and not only after those of another group.

    A control group that comes last does so among those that the same group holds.
    """
    if background.way is Way.SESSION:
        return True
    try:
        group = _group_of(os.getpid(), proc, cgroups)[0]
    except (OSError, ValueError, StopIteration):
        return False
    return group.is_relative_to(Path(background.path).parent)


def _group_of(pid: int, proc: Path, cgroups: Path) -> tuple[Path, Path, bool]:
    """Find the control group that shares the cores: its directory, the uppermost one, whether one may be made in it.

    In version 2, a group with processes has none in it.
    """
    lines = [line.split(":", 2) for line in (proc / str(pid) / "cgroup").read_text().splitlines()]
    for _, controllers, path in lines:
        if "cpu" in controllers.split(","):
            root = next(r for r in (cgroups / "cpu", cgroups / controllers) if r.is_dir())
            return root / path.lstrip("/"), root, True
    group = cgroups / next(path for number, _, path in lines if number == "0").lstrip("/")
    while group != cgroups and not (group / "cpu.idle").exists():  # it is counted as a part of the one above
        group = group.parent
    return group, cgroups, group == cgroups


def _is_own(group: Path, members: Members) -> bool:
    found = set().union(*(_processes(file.parent) for file in group.rglob("cgroup.procs")))
    return found <= set(members()) and (group / "cpu.idle").read_text().strip() == "0"


def _session(pid: int, members: Members, proc: Path) -> Background | None:
    file = proc / str(pid) / "autogroup"
    if not _has_sessions(proc) or not os.access(file, os.W_OK):
        return None
    if not _processes_of_session(os.getsid(pid), proc) <= set(members()):
        return None
    nice = int(file.read_text().split()[-1])
    if nice < 0:  # it takes a privilege to go back there
        return None
    return Background(Way.SESSION, str(file), nice, os.getsid(pid))


def _has_sessions(proc: Path) -> bool:
    file = proc / "sys/kernel/sched_autogroup_enabled"
    return file.exists() and file.read_text().strip() == "1"


def _gather(group: Path, members: Members) -> None:
    group.mkdir()
    (group / "cpu.idle").write_text("1")
    for _ in range(_PASSES):
        there = _processes(group)
        missing = [member for member in members() if member not in there]
        for member in missing:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                (group / "cgroup.procs").write_text(str(member))
        if not missing:
            break


def _dissolve(group: Path) -> None:
    for _ in range(_PASSES):
        left = _processes(group)
        for member in left:
            with contextlib.suppress(ProcessLookupError):
                (group.parent / "cgroup.procs").write_text(str(member))
        if not left:
            break
    group.rmdir()


def _processes(group: Path) -> set[int]:
    return {int(line) for line in (group / "cgroup.procs").read_text().split()}


def _processes_of_session(session: int, proc: Path) -> set[int]:
    found = set()
    for entry in proc.iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError, IndexError):
                if int((entry / "stat").read_text().rpartition(")")[2].split()[3]) == session:
                    found.add(int(entry.name))
    return found
