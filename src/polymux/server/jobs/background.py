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
import os
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
    """A way to put a job into the background, and how that is undone; `find_background` finds it.

    Attributes
    ----------
    way : Way
    path : str
        The control group's directory, or the file of the session's nice value.
    nice : int
        That the session has before.
    """

    way: Way
    path: str
    nice: int = 0

    def enter(self, members: Members) -> bool:
        """Have the job come after all others; False when the kernel refuses, and nothing is changed."""
        try:
            if self.way is Way.SESSION:
                Path(self.path).write_text(str(LAST))
            elif self.way is Way.OWN:
                (Path(self.path) / "cpu.idle").write_text("1")
            else:
                _gather(Path(self.path), members)
        except OSError:
            self.leave()
            return False
        return True

    def leave(self) -> None:
        """Put the job back; what has ended meanwhile, or was never done, is no error."""
        with contextlib.suppress(OSError):
            if self.way is Way.SESSION:
                Path(self.path).write_text(str(self.nice))
            elif self.way is Way.OWN:
                (Path(self.path) / "cpu.idle").write_text("0")
            else:
                _dissolve(Path(self.path))


def find_background(
    pid: int, members: Members, proc: Path = _PROC, cgroups: Path = _CGROUPS
) -> Background | None:
    """Find how a job can be put into the background; None: others are in its group, or the server may not change it.

    Parameters
    ----------
    pid : int
        Of the job's first process.
    members : callable
    proc, cgroups : pathlib.Path
        Where the kernel has its files.
    """
    try:
        group, root, can_hold_groups = _group_of(pid, proc, cgroups)
        found = None
        if group != root and _is_own(group, members):
            found = Background(Way.OWN, str(group))
        elif can_hold_groups and os.access(group, os.W_OK):
            found = Background(Way.MADE, str(group / f"polymux-job-{pid}"))
        elif group == root:
            found = _session(pid, members, proc)
    except (OSError, ValueError, StopIteration):  # files of the kernel are missing, or it is gone
        return None
    return found if found is not None and len(os.fsencode(found.path)) < PATH_NBYTES else None


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
    """Whether a job in the background comes after this process, too, and not only after those of another group."""
    if background.way is not Way.MADE:
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
    return Background(Way.SESSION, str(file), int(file.read_text().split()[-1]))


def _has_sessions(proc: Path) -> bool:
    file = proc / "sys/kernel/sched_autogroup_enabled"
    return file.exists() and file.read_text().strip() == "1"


def _gather(group: Path, members: Members) -> None:
    group.mkdir(exist_ok=True)
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
