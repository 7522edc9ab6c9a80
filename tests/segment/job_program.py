"""A job that counts its boundaries in a file: ``python job_program.py SOCKET COUNTER [LEVEL,...] [MODE]``.

Modes: "steps" gives way between runs as well, "stuck" looks at its lease once and never again, "alone" needs no server,
"asleep" does nothing by itself.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import time
from pathlib import Path

from polymux.client import Client
from polymux.core.errors import PolymuxError


class Counter:
    """A number in a file that one process counts up and others read."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(8))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 8)

    @property
    def value(self) -> int:
        number: int = struct.unpack("<Q", self._memory[:8])[0]
        return number

    def count(self) -> None:
        self._memory[:8] = struct.pack("<Q", self.value + 1)


def run(socket: str, counter: Counter, levels: list[str], mode: str) -> None:
    client = Client(socket, name="job", segment_nbytes=64 << 20)
    options = {"boundary_ns": 1_000_000} if mode == "stuck" else {}
    lease = client.lease("counting", levels=levels, **options)  # type: ignore[arg-type]
    lease.step()
    print("ready", lease.job, lease.device, flush=True)
    run_number = 0
    while True:
        counter.count()
        time.sleep(0.001)
        if mode == "stuck":
            continue
        run_number += 1
        if mode == "steps" and run_number % 10 == 0:
            lease.step()
        else:
            lease.check()


def main() -> None:
    socket, path, *rest = sys.argv[1:]
    levels = rest[0].split(",") if rest else ["step", "boundary"]
    mode = rest[1] if len(rest) > 1 else ""
    counter = Counter(Path(path))
    if mode == "alone":
        print("ready", os.environ.get("POLYMUX_LEASE"), os.getpid(), flush=True)
        while True:
            counter.count()
            time.sleep(0.001)
    try:
        run(socket, counter, levels, mode)
    except PolymuxError as error:
        print(type(error).__name__, error, flush=True)
        while True:  # it goes on without a lease
            counter.count()
            time.sleep(0.001)


if __name__ == "__main__":
    main()
