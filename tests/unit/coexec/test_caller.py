"""The thread that hands pieces out leaves the cores of devices that compute on threads of their own."""

from __future__ import annotations

import os

import pytest

from polymux.coexec.caller import kept_off
from polymux.coexec.operation import ChunkKernel
from polymux.coexec.places import Place
from polymux.coexec.units import Unit


def unit(device: str, core: int) -> Unit:
    place = Place(f"{device}/0", device, "key", frozenset({core}), frozenset({core}), True)
    return Unit(place, ChunkKernel("k"), "fp32")


@pytest.fixture
def affinity(monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    sets: list[set[int]] = [{0, 1}]
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(sets[-1]))
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: sets.append(set(cores)))
    return sets


def test_it_leaves_and_may_come_back_whatever_happens(affinity: list[set[int]]) -> None:
    with (
        pytest.raises(ValueError, match="middle"),
        kept_off([unit("cpu:0", 0), unit("opencl:0", 1)], lambda: 1),
    ):
        assert affinity[-1] == {0}
        raise ValueError("in the middle")
    assert affinity[-1] == {0, 1}


@pytest.mark.parametrize(
    ("units", "here"),
    [
        ([unit("cpu:0", 0), unit("opencl:0", 1)], 0),
        ([unit("cpu:0", 0), unit("cpu:1", 1)], 1),
        ([unit("opencl:0", 0), unit("opencl:0", 1)], 1),
    ],
)
def test_it_stays_where_it_disturbs_nobody_or_can_go_nowhere(
    affinity: list[set[int]], units: list[Unit], here: int
) -> None:
    with kept_off(units, lambda: here):
        pass
    assert len(affinity) == 1
