"""Which cores a benchmark pins its processes to."""

from __future__ import annotations

import os
from collections.abc import Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cores:
    """A core for the application and another one for the server's accelerator thread.

    Parameters
    ----------
    client, server : int
        Numbers of the cores, -1 where the machine has only one and nothing is pinned.
    others : frozenset of int
        Every usable core but the server's.
    """

    client: int
    server: int
    others: frozenset[int]

    @property
    def pinned(self) -> bool:
        """Whether both sides have a core of their own."""
        return self.client >= 0

    @property
    def note(self) -> str:
        """Say what was done, for the report."""
        if self.pinned:
            return f"the application is pinned to core {self.client}, the other side to core {self.server}"
        return "one core for everything: nothing is pinned and the figures say little"

    def swapped(self) -> Cores:
        """The same two cores, each in the other's place."""
        return Cores(self.server, self.client, (self.others | {self.server}) - {self.client})


def choose_cores() -> Cores:
    """Take the first two cores that this process may use."""
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) == 1:
        return Cores(-1, -1, frozenset(usable))
    return Cores(usable[0], usable[1], frozenset(usable) - {usable[1]})


@contextmanager
def pinned_to(cores: Set[int]) -> Iterator[None]:
    """Run the body, and the processes that it starts, on these cores; negative numbers stand for none."""
    before = os.sched_getaffinity(0)
    wanted = {core for core in cores if core >= 0}
    if wanted:
        os.sched_setaffinity(0, wanted)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
