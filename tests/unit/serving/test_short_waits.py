"""A thread that asks for short waits has short slices; others keep theirs."""

from __future__ import annotations

import platform
import threading
from collections.abc import Callable

import pytest

from polymux.serving import short_waits
from polymux.serving.short_waits import SLICE_NS, prefer_short_waits

LINUX = tuple(int(part) for part in platform.release().split(".")[:2])


def in_a_thread(work: Callable[[], int]) -> int:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.skipif(LINUX < (6, 12), reason="slices of single threads came with Linux 6.12")
def test_a_thread_gets_the_shortest_slice_whenever_it_asks() -> None:
    assert in_a_thread(prefer_short_waits) == SLICE_NS
    assert in_a_thread(lambda: (prefer_short_waits(), prefer_short_waits())[1]) == SLICE_NS


def test_where_the_call_is_not_known_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "unheard-of")
    assert in_a_thread(short_waits.prefer_short_waits) == 0
