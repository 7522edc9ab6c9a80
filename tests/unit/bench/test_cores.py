"""Pinning for a measurement ends with it."""

from __future__ import annotations

import os

import pytest

from polymux.bench.cores import choose_cores, pinned_to


def test_application_and_server_get_different_cores_that_may_be_used() -> None:
    usable = os.sched_getaffinity(0)
    cores = choose_cores()
    if len(usable) == 1:
        assert (cores.client, cores.server, cores.pinned) == (-1, -1, False)
        assert "nothing is pinned" in cores.note
        return
    assert cores.client != cores.server
    assert {cores.client, cores.server} <= usable
    assert cores.others == usable - {cores.server}


def test_one_usable_core_means_that_nothing_is_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {3})
    cores = choose_cores()
    assert not cores.pinned
    assert cores.others == {3}


def test_pinning_ends_with_the_block_also_after_an_error() -> None:
    before = os.sched_getaffinity(0)
    one = {min(before)}

    def fail() -> None:
        assert os.sched_getaffinity(0) == one
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), pinned_to(one):
        fail()
    assert os.sched_getaffinity(0) == before


def test_pinning_to_no_core_changes_nothing() -> None:
    before = os.sched_getaffinity(0)
    with pinned_to({-1}):
        assert os.sched_getaffinity(0) == before
