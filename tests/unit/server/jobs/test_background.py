"""How a job can come after all others, by the kernel's files: control groups of both versions, and sessions."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from polymux.server.jobs.background import Background, Way, find_background, is_beside, shares_group

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
        (folder / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in processes))
        return folder

    def find(self, *members: int) -> Background | None:
        return find_background(OWN, lambda: members, self.proc, self.cgroups)


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path)


def test_a_group_is_made_below_the_uppermost_one(kernel: Kernel) -> None:
    root = kernel.group("cpu", [1, OWN, OTHER])
    kernel.process(OWN, "5:memory:/a\n1:cpu,cpuacct:/\n0::/")
    assert kernel.find(OWN) == Background(Way.MADE, str(root / f"polymux-job-{OWN}"))


def test_a_group_that_is_the_jobs_alone_comes_last(kernel: Kernel) -> None:
    kernel.group("cpu", [1])
    group = kernel.group("cpu/jobs/one", [OWN, OTHER])
    kernel.process(OWN, "1:cpu:/jobs/one")
    found = kernel.find(OWN, OTHER)
    assert found == Background(Way.OWN, str(group))
    assert found.enter(lambda: [OWN, OTHER])
    assert (group / "cpu.idle").read_text() == "1"
    assert kernel.find(OWN, OTHER) != found, "it is idle already: not by the server"
    found.leave()
    assert (group / "cpu.idle").read_text() == "0"


def test_in_a_group_with_others_one_is_made_below_where_the_version_has_that(kernel: Kernel) -> None:
    kernel.group("cpu", [1])
    group = kernel.group("cpu/user", [OWN, OTHER])
    kernel.process(OWN, "1:cpu:/user")
    assert kernel.find(OWN) == Background(Way.MADE, str(group / f"polymux-job-{OWN}"))


@pytest.mark.parametrize("others", [(), (OTHER,)])
def test_a_group_of_version_2_comes_last_only_when_it_is_the_jobs_alone(
    kernel: Kernel, others: tuple[int, ...]
) -> None:
    group = kernel.group("user.slice/job", [OWN, *others])
    kernel.process(OWN, "0::/user.slice/job")
    assert kernel.find(OWN) == (None if others else Background(Way.OWN, str(group)))


def test_a_group_that_shares_no_cores_counts_as_the_one_above(kernel: Kernel) -> None:
    group = kernel.group("user.slice", [OWN])
    (group / "quiet").mkdir()
    (group / "quiet" / "cgroup.procs").write_text(f"{OWN}\n")
    kernel.process(OWN, "0::/user.slice/quiet")
    assert kernel.find(OWN) == Background(Way.OWN, str(group))


@pytest.mark.parametrize("together", [False, True])
def test_a_session_comes_last_when_nobody_else_is_in_it(kernel: Kernel, together: bool) -> None:
    session = os.getsid(0)
    kernel.autogroup("1")
    kernel.process(OWN, "0::/", session)
    kernel.process(OTHER, "0::/", session if together else session + 1)
    kernel.cgroups.chmod(0o500)
    found = kernel.find(OWN)
    if os.access(kernel.cgroups, os.W_OK):
        assert found == Background(Way.MADE, str(kernel.cgroups / f"polymux-job-{OWN}")), "root may"
        return
    file = kernel.proc / str(OWN) / "autogroup"
    assert found == (None if together else Background(Way.SESSION, str(file), 3))
    if found is not None:
        assert found.enter(lambda: [OWN])
        assert file.read_text() == "19"
        found.leave()
        assert file.read_text() == "3"


def test_what_the_kernel_refuses_changes_nothing(kernel: Kernel, tmp_path: Path) -> None:
    for way in Way:
        assert not Background(way, str(tmp_path / "none" / "deeper")).enter(lambda: [OWN])
    kernel.process(OWN, "1:cpu:/")
    assert kernel.find(OWN) is None, "there is no such controller here"
    assert find_background(OTHER, lambda: [OTHER], kernel.proc, kernel.cgroups) is None, "it has ended"


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
        way = Background(Way.MADE, str(kernel.cgroups / path))
        assert is_beside(way, kernel.proc, kernel.cgroups) is beside
    assert is_beside(Background(Way.OWN, "anything"), kernel.proc, kernel.cgroups)
