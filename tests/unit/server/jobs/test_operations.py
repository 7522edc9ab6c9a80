"""A lease that is refused leaves its process as it was, and nothing of it open."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from polymux.core.errors import DeviceUnavailable, InvalidRequest
from polymux.server.jobs import operations
from polymux.server.jobs.lease import Lease
from polymux.server.parts import Parts
from polymux.server.request import Request
from tests.unit.server.jobs.rig import Process, Rig

PID = 4242


class Asked:
    """A request for a lease, by a client that may have ended."""

    def __init__(self, levels: str, ended: bool = False, memory_nbytes: int = 0) -> None:
        peer = SimpleNamespace(pid=PID, uid=0)
        self.session = SimpleNamespace(
            id=1,
            name="application",
            ended=ended,
            leases={},
            peer=peer,
            segment=SimpleNamespace(set_gate=lambda *_: None),
        )
        self.caller = SimpleNamespace(peer=peer)
        self.answers: list[Any] = []
        self._numbers = {"pid": PID, "memory_nbytes": memory_nbytes}
        self._texts = {"levels": levels}

    def number(self, key: str, least: int, most: int, default: int) -> int:
        return self._numbers.get(key, default)

    def text(self, key: str, default: str, limit: int = 0) -> str:
        return self._texts.get(key, default)

    def answer(self, fields: object = None) -> None:
        self.answers.append(fields)


def open_lease(rig: Rig, asked: Asked, process: Process, outer: Lease | None = None) -> None:
    def later(request: Request, work: Callable[[], None]) -> None:
        work()

    parts = cast(Parts, SimpleNamespace(jobs=rig.driver, later=later))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operations, "find_process", lambda *_, **__: process)
        patch.setattr(operations.os, "getpgid", lambda _: outer.process.pid if outer and outer.process else 0)
        operations.job_operations(parts, rig.held.append)["lease_open"](cast(Request, asked))


@pytest.mark.parametrize(
    "asked",
    [Asked("idle"), Asked("stop", ended=True), Asked("stop", memory_nbytes=2**50)],
    ids=["another group", "client ended", "too large"],
)
def test_the_process_of_a_refused_lease_is_given_back(asked: Asked) -> None:
    rig, process = Rig(memory_nbytes=1000), Process()
    with pytest.raises(InvalidRequest):
        open_lease(rig, asked, process)
    assert (process.closed, process.in_background, asked.answers) == (True, "", [])
    assert (asked.session.leases, rig.driver.leases()) == ({}, [])


def test_a_refused_lease_inside_another_one_leaves_that_its_process() -> None:
    rig, process = Rig(memory_nbytes=1000), Process()
    process.group = True
    outer = rig.open((operations.LEVELS["stop"],), process=process)
    cast(Any, outer).session.peer = SimpleNamespace(uid=0)
    with pytest.raises(InvalidRequest):
        open_lease(rig, Asked("stop", memory_nbytes=2**50), process, outer)
    assert not process.closed
    assert rig.driver.leases() == [outer]


def test_levels_are_promised_by_what_the_kernel_has_taken() -> None:
    class Entering(Process):
        def enter_background(self, threads: bool, about_to: object = None) -> None:
            super().enter_background(threads, about_to)
            self.may_idle = True

    rig, process, asked = Rig(), Entering(), Asked("idle,stop")
    assert not process.may_idle
    open_lease(rig, asked, process)
    assert asked.answers[0]["levels"] == "idle,stop"


def test_a_process_that_cannot_be_watched_over_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, process, asked = Rig(), Process(), Asked("boundary,stop")

    def fail(_: object) -> None:
        raise DeviceUnavailable("no guard")

    monkeypatch.setattr(rig.driver.custody, "take", fail)
    open_lease(rig, asked, process)
    assert process.closed
    assert asked.answers[0]["levels"] == "boundary"
