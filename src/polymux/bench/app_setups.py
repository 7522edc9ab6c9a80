"""The servers that `polymux bench apps` compares: devices, streams and the queues that an application gets."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import polymux
from polymux.apps.lane import QueueLane
from polymux.bench.bench_server import BenchServer


@dataclass(frozen=True, slots=True)
class Setup:
    """Devices, and the queues of an application on them.

    Parameters
    ----------
    name : str
        For people.
    devices : tuple of str
        As ``polymux up --device`` takes them; the first one's API is the one that counts for the native run.
    queues : tuple of str
        The device of each queue.
    """

    name: str
    devices: tuple[str, ...]
    queues: tuple[str, ...]

    @property
    def api(self) -> str:
        """API of the native run that it is compared with."""
        return self.devices[0].partition(",")[0].partition(":")[0]


def _halves() -> tuple[str, str]:
    """The usable cores as two devices on host memory."""
    cores = sorted(os.sched_getaffinity(0))
    middle = max(1, len(cores) // 2)
    halves = cores[:middle], cores[middle:] or cores[:1]
    first, second = (",".join(f"{core}" for core in half) for half in halves)
    return f"cpu:{first},memory=host,streams=1", f"cpu:{second},memory=host,streams=1"


def _streams(api: str, count: int) -> Setup:
    plural = "s" if count > 1 else ""
    return Setup(f"{api}, {count} stream{plural}", (f"{api},streams={count}",), (f"{api}:0",) * count)


_HALVES = _halves()

SETUPS = (
    *(_streams("cpu", count) for count in (1, 2, 4)),
    Setup("half the cores", _HALVES[:1], ("cpu:0",)),
    Setup("2 halves of the cores", _HALVES, ("cpu:0", "cpu:1")),
    Setup("cpu + opencl", ("cpu,streams=1", "opencl,streams=1"), ("cpu:0", "opencl:0")),
    *(_streams("opencl", count) for count in (1, 2, 4)),
)


class Setups:
    """A running server for each of some set-ups; a context manager."""

    def __init__(self, setups: Sequence[Setup]) -> None:
        self.setups = tuple(setups)
        self._stack = ExitStack()
        self._sockets: dict[Setup, str] = {}

    def __enter__(self) -> Self:
        with self._stack:
            for setup in self.setups:
                self._sockets[setup] = self._stack.enter_context(BenchServer(setup.devices)).socket
            self._stack = self._stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def lanes(self, setup: Setup, segment_nbytes: int, stack: ExitStack) -> list[QueueLane]:
        """Connect to a set-up's server and open its queues; `stack` closes them."""
        client = stack.enter_context(
            polymux.connect(
                self._sockets[setup], name="bench apps", segment_nbytes=segment_nbytes, start=False
            )
        )
        return [QueueLane(stack.enter_context(client.queue(device=device))) for device in setup.queues]
