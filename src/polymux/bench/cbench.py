"""Runs polymux-cbench, the benchmarks' C side, which measures through polymux.h alone."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import polymux
from polymux.core.errors import PolymuxError

EXECUTABLE = Path(polymux.__file__).resolve().parent / "bin" / "polymux-cbench"
TIMEOUT_S = 600


def start(measurement: str, **options: object) -> subprocess.Popen[str]:
    """Start a measurement.

    Parameters
    ----------
    measurement : str
        The command, as listed by ``polymux-cbench --help``.
    **options
        Its options by name; ``pause_us=5`` is ``--pause-us 5``. Negative numbers and None are left out.

    Raises
    ------
    PolymuxError
        When the program has not been built.
    """
    if not EXECUTABLE.is_file():
        raise PolymuxError(f"{EXECUTABLE} is missing; build it with `make build`")
    words = [str(EXECUTABLE), measurement]
    for name, value in options.items():
        if value is None or (isinstance(value, int) and value < 0):
            continue
        words += [f"--{name.replace('_', '-')}", str(value)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> dict[str, float]:
    """Wait for a measurement and read what it found.

    Raises
    ------
    PolymuxError
        With the program's own words when it failed or takes longer than ten minutes.
    """
    try:
        output, complaint = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise PolymuxError(f"{process.args!r} has not ended within {TIMEOUT_S} s") from None
    if process.returncode != 0:
        raise PolymuxError(f"polymux-cbench failed ({process.returncode}): {complaint.strip()}")
    found: dict[str, float] = json.loads(output)
    return found


def measure(measurement: str, **options: object) -> dict[str, float]:
    """Run a measurement to its end; see `start` and `finish`."""
    return finish(start(measurement, **options))
