"""A core taken away for half of the run: another process computes there, and counts what it got."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from time import perf_counter
from typing import Any

from polymux.bench.coexec.machine import Pair
from polymux.bench.coexec.shapes import Case
from polymux.coexec import Session
from polymux.core.errors import PolymuxError

LOADED_TARGET = 1.15
_PROGRAM = """
import os, signal, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
print("ready", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
while True:
    pass
"""


class Burner:
    """A process that takes a core while it is let go on."""

    def __init__(self, core: int) -> None:
        words = [sys.executable, "-c", _PROGRAM, str(core)]
        self._process = subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True)
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"ready\n":
            raise PolymuxError("the process that is to load a core did not start")

    def go_on(self) -> None:
        """Let it compute."""
        os.kill(self._process.pid, signal.SIGCONT)

    def stop(self) -> None:
        """Hold it up."""
        os.kill(self._process.pid, signal.SIGSTOP)

    def cpu_s(self) -> float:
        """Return the processor time that it has had."""
        with open(f"/proc/{self._process.pid}/schedstat") as file:
            return int(file.read().split()[0]) / 1e9

    def end(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


@contextmanager
def burning(core: int) -> Iterator[Burner]:
    """Have a burner, held up at first."""
    burner = Burner(core)
    try:
        yield burner
    finally:
        burner.end()


def measure_loaded(session: Session, case: Case, pair: Pair, core: int, rounds: int) -> dict[str, Any]:
    """Measure a case while the first unit's core is loaded by another process for the first half of the run.

    Parameters
    ----------
    session : Session
    case : Case
    pair : Pair
        The first unit is on `core`.
    core : int
    rounds : int

    Notes
    -----
    What is possible then: the work over the measured rates, when the first unit computes only while the other process
    does not. That one counts the time it had, so that it does not matter how the operating system divides the core.
    """
    arrays = case.arrays(session)
    ((shape, dtype), *_) = case.operation.outputs(*arrays, **case.parameters)
    out = (session.empty(shape, dtype),)

    def run(devices: tuple[str, ...]) -> float:
        begun = perf_counter()
        session.run(
            case.operation, *arrays, out=out, devices=devices, precision=pair.precision, **case.parameters
        )
        return perf_counter() - begun

    for names in (pair.units[:1], pair.units[1:], pair.units, pair.units):
        run(names)
    ratios, loaded, possible = [], [], []
    with burning(core) as burner:
        for _ in range(rounds):
            first_s, second_s = run(pair.units[:1]), run(pair.units[1:])
            ideal_s = 1 / (1 / first_s + 1 / second_s)
            time.sleep(
                1.2
            )  # longer than a slow run counts for the next ones: nobody knows of the load beforehand
            before_s = burner.cpu_s()
            timer = threading.Timer(ideal_s / 2, burner.stop)
            timer.start()
            burner.go_on()
            took_s = run(pair.units)
            timer.join()
            possible_s = ideal_s * (1 + (burner.cpu_s() - before_s) / first_s)
            ratios.append(took_s / possible_s)
            loaded.append(took_s)
            possible.append(possible_s)
    return {
        "op": case.operation.name,
        "shape": case.label,
        "devices": f"{pair.name}, first core loaded",
        "coexec_s": median(loaded),
        "possible_s": median(possible),
        "ratio": median(ratios),
    }
