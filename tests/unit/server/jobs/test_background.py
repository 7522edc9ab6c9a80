"""How a job can come after all others, by the kernel's files: control groups of both versions, and sessions."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from polymux.server.jobs.background import (
    Background,
    Way,
    find_backgrounds,
    is_beside,
    shares_group,
    sweep,
)

OWN = os.getpid()
OTHER = OWN + 1


class Kernel:
    """Its files, as far as they matter, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.cgroups = folder / "proc", folder / "cgroup"
        self.proc.mkdir()
        self.cgroups.mkdir()
        (self.proc / "sys/kernel").mkdir(parents=True)
        self.autogroup("0")

    def autogroup(self, on: str) -> None:
        (self.proc / "sys/kernel/sched_autogroup_enabled").write_text(on + "\n")

    def process(self, pid: int, cgroup: str, session: int = 0) -> None:
        folder = self.proc / str(pid)
        folder.mkdir()
        (folder / "cgroup").write_text(cgroup + "\n")
        (folder / "autogroup").write_text("/autogroup-1 nice 3\n")
        (folder / "stat").write_text(f"{pid} (a name) S 1 {pid} {session} 0 0\n")

    def group(self, path: str, processes: Sequence[int] = ()) -> Path:
        folder = self.cgroups / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cpu.idle").write_text("0\n")
        (folder / ("cpu.shares" if path.startswith("cpu") else "cpu.weight")).write_text("300\n")
        (folder / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in processes))
        return folder

    def find(self, *members: int) -> Background | None:
        """Find the best way."""
        return next(iter(self.ways(*members)), None)

    def ways(self, *members: int) -> tuple[Background, ...]:
        return find_backgrounds(OWN, lambda: members, self.proc, self.cgroups)


def is_made_in(found: Background | None, group: Path) -> bool:
    """Whether a group is made for the job below this one."""
    return found is not None and found.way is Way.MADE and Path(found.path).parent == group


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path)


def test_a_group_is_made_below_the_uppermost_one(kernel: Kernel) -> None:
    root = kernel.group("cpu", [1, OWN, OTHER])
    kernel.process(OWN, "5:memory:/a\n1:cpu,cpuacct:/\n0::/")
    assert is_made_in(kernel.find(OWN), root)


def test_a_group_that_is_the_jobs_alone_comes_last(kernel: Kernel) -> None:
    kernel.group("cpu", [1])
    group = kernel.group("cpu/jobs/one", [OWN, OTHER])
    kernel.process(OWN, "1:cpu:/jobs/one")
    found = kernel.find(OWN, OTHER)
    assert found == Background(Way.OWN, str(group), 300)
    assert found.enter(lambda: [OWN, OTHER])
    assert (group / "cpu.idle").read_text() == "1"
    assert kernel.find(OWN, OTHER) != found, "it is idle already: not by the server"
    found.leave()
    assert (group / "cpu.idle").read_text() == "0"


def test_in_a_group_with_others_one_is_made_below_where_the_version_has_that(kernel: Kernel) -> None:
    kernel.group("cpu", [1])
    group = kernel.group("cpu/user", [OWN, OTHER])
    kernel.process(OWN, "1:cpu:/user")
    assert is_made_in(kernel.find(OWN), group)


@pytest.mark.parametrize("others", [(), (OTHER,)])
def test_a_group_of_version_2_comes_last_only_when_it_is_the_jobs_alone(
    kernel: Kernel, others: tuple[int, ...]
) -> None:
    group = kernel.group("user.slice/job", [OWN, *others])
    kernel.process(OWN, "0::/user.slice/job")
    assert kernel.find(OWN) == (None if others else Background(Way.OWN, str(group), 300))


def test_a_group_that_shares_no_cores_counts_as_the_one_above(kernel: Kernel) -> None:
    group = kernel.group("user.slice", [OWN])
    (group / "quiet").mkdir()
    (group / "quiet" / "cgroup.procs").write_text(f"{OWN}\n")
    kernel.process(OWN, "0::/user.slice/quiet")
    assert kernel.find(OWN) == Background(Way.OWN, str(group), 300)


@pytest.mark.parametrize("together", [False, True])
def test_a_session_comes_last_when_nobody_else_is_in_it(kernel: Kernel, together: bool) -> None:
    session = os.getsid(0)
    kernel.autogroup("1")
    kernel.process(OWN, "0::/", session)
    kernel.process(OTHER, "0::/", session if together else session + 1)
    kernel.cgroups.chmod(0o500)
    found = kernel.find(OWN)
    if os.access(kernel.cgroups, os.W_OK):
        assert is_made_in(found, kernel.cgroups), "root may"
        found = next((way for way in kernel.ways(OWN) if way.way is Way.SESSION), None)
    file = kernel.proc / str(OWN) / "autogroup"
    assert found == (None if together else Background(Way.SESSION, str(file), 3, session))
    if found is not None:
        assert found.enter(lambda: [OWN])
        assert file.read_text() == "19"
        assert found.leave(proc=kernel.proc)
        assert file.read_text() == "3"


def test_a_session_that_is_above_others_is_left_there_since_nobody_could_put_it_back(kernel: Kernel) -> None:
    kernel.autogroup("1")
    kernel.process(OWN, "0::/", os.getsid(0))
    (kernel.proc / str(OWN) / "autogroup").write_text("/autogroup-1 nice -5\n")
    assert all(way.way is not Way.SESSION for way in kernel.ways(OWN))


def test_a_session_is_put_back_through_a_process_that_lives_when_the_first_has_ended(kernel: Kernel) -> None:
    kernel.process(OTHER, "0::/", 7)
    file = kernel.proc / str(OTHER) / "autogroup"
    file.write_text("/autogroup-1 nice 19\n")
    ended = Background(Way.SESSION, str(kernel.proc / "1/autogroup"), 2, session=7)
    assert ended.leave(proc=kernel.proc)
    assert file.read_text() == "2"


class Refusing:
    """A kernel that takes a change of a session only after some attempts."""

    def __init__(self, error: int, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times = times
        self.write = Path.write_text
        monkeypatch.setattr(Path, "write_text", lambda path, text: self.attempt(error, path, text))
        monkeypatch.setattr("time.sleep", lambda _: None)

    def attempt(self, error: int, path: Path, text: str) -> int:
        self.times -= 1
        if self.times >= 0:
            raise OSError(error, os.strerror(error))
        return self.write(path, text)


def test_a_session_that_the_kernel_does_not_let_change_yet_is_tried_again(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel.process(OWN, "0::/", os.getsid(0))
    file = kernel.proc / str(OWN) / "autogroup"
    way = Background(Way.SESSION, str(file), 3, os.getsid(0))
    refusing = Refusing(errno.EAGAIN, 3, monkeypatch)
    assert way.enter(lambda: [OWN])
    assert file.read_text() == "19"
    refusing.times = 1
    assert not way.leave(proc=kernel.proc), "who has no time is told that it is not done yet"
    assert file.read_text() == "19"
    refusing.times = 3
    assert way.leave(1.0, kernel.proc)
    assert file.read_text() == "3"


def test_what_cannot_be_put_back_is_told(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    kernel.process(OWN, "0::/", os.getsid(0))
    way = Background(Way.SESSION, str(kernel.proc / str(OWN) / "autogroup"), 3, os.getsid(0))
    assert way.enter(lambda: [OWN])
    Refusing(errno.EPERM, 1, monkeypatch)
    assert way.leave(proc=kernel.proc)
    assert "cannot be put back" in capfd.readouterr().out
    assert Background(Way.OWN, str(kernel.cgroups / "gone")).leave()
    assert Background(Way.MADE, str(kernel.cgroups / "gone")).leave()
    assert capfd.readouterr().out == "", "what has ended is no error"


@pytest.mark.parametrize(("path", "file"), [("cpu/job", "cpu.shares"), ("job", "cpu.weight")])
def test_a_group_gets_the_weight_back_that_being_idle_has_cost_it(
    kernel: Kernel, path: str, file: str
) -> None:
    if path.startswith("cpu"):
        kernel.group("cpu")
    group = kernel.group(path, [OWN])
    kernel.process(OWN, "1:cpu:/job" if path.startswith("cpu") else "0::/job")
    way = kernel.find(OWN)
    assert way is not None
    assert way.enter(lambda: [OWN])
    (group / file).write_text("1")
    assert way.leave()
    assert ((group / "cpu.idle").read_text(), (group / file).read_text()) == ("0", "300")


def test_two_leases_never_make_the_same_group_and_none_takes_one_that_is_there(kernel: Kernel) -> None:
    kernel.group("cpu", [1, OWN])
    kernel.process(OWN, "1:cpu:/")
    first, second = kernel.find(OWN), kernel.find(OWN)
    assert first is not None
    assert second is not None
    assert first.path != second.path
    Path(first.path).mkdir()
    assert not first.enter(lambda: [OWN])


def test_groups_of_servers_that_have_ended_are_swept_and_those_of_others_stay(kernel: Kernel) -> None:
    kernel.group("cpu", [1])
    space = Path("/proc/self/ns/pid").stat().st_ino
    ended = kernel.group(f"cpu/polymux-job-5-{space}-{2**22 + 1}-1")
    lives = kernel.group(f"cpu/polymux-job-5-{space}-{OWN}-1")
    elsewhere = kernel.group(f"cpu/polymux-job-5-1-{2**22 + 1}-1")
    for group in (ended, lives, elsewhere):  # the kernel's files do not keep a group from being removed
        for file in ("cpu.idle", "cpu.shares"):
            (group / file).unlink()
    removed: list[Path] = []

    def remove(group: Path) -> None:
        removed.append(group)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "rmdir", remove)
        sweep(kernel.cgroups)
    assert removed == [ended]


def test_what_the_kernel_refuses_changes_nothing(kernel: Kernel, tmp_path: Path) -> None:
    for way in Way:
        assert not Background(way, str(tmp_path / "none" / "deeper")).enter(lambda: [OWN])
    kernel.process(OWN, "1:cpu:/")
    assert kernel.find(OWN) is None, "there is no such controller here"
    assert find_backgrounds(OTHER, lambda: [OTHER], kernel.proc, kernel.cgroups) == (), "it has ended"


def test_a_path_that_the_guard_cannot_take_is_no_way(kernel: Kernel) -> None:
    kernel.group("cpu")
    path = "/".join(["x" * 100] * 3)
    kernel.group(f"cpu/{path}", [OWN])
    kernel.process(OWN, f"1:cpu:/{path}")
    assert kernel.find(OWN) is None


@pytest.mark.parametrize(
    ("autogroup", "cgroup", "same"),
    [("0", "1:cpu:/a", True), ("1", "1:cpu:/a", True), ("0", "1:cpu:/b", False), ("0", "1:cpu:/", False)],
)
def test_processes_of_different_groups_are_told_apart(
    kernel: Kernel, autogroup: str, cgroup: str, same: bool
) -> None:
    for path in ("cpu", "cpu/a", "cpu/b"):
        kernel.group(path)
    kernel.autogroup(autogroup)
    kernel.process(OWN, "1:cpu:/a")
    kernel.process(OTHER, cgroup)
    assert shares_group(OTHER, kernel.proc, kernel.cgroups) is same


def test_a_group_below_another_container_comes_last_only_there(kernel: Kernel) -> None:
    for path in ("cpu", "cpu/a", "cpu/b"):
        kernel.group(path)
    kernel.process(OWN, "1:cpu:/a")
    for path, beside in (("cpu/a/job", True), ("cpu/job", True), ("cpu/b/job", False)):
        for way in (Way.MADE, Way.OWN):
            background = Background(way, str(kernel.cgroups / path))
            assert is_beside(background, kernel.proc, kernel.cgroups) is beside
    assert is_beside(Background(Way.SESSION, "anything"), kernel.proc, kernel.cgroups)
