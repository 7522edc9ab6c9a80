"""What the operating system says of the memory of jobs' processes."""

from __future__ import annotations

import contextlib
from pathlib import Path

_FIELDS = ("VmRSS:", "VmHWM:")


def resident_nbytes(pid: int, proc: Path = Path("/proc")) -> tuple[int, int]:
    """Read the memory that a process has now, and the most that it ever had, in bytes; (0, 0) when it has ended."""
    values = dict.fromkeys(_FIELDS, 0)
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in (proc / str(pid) / "status").read_text().splitlines():
            words = line.split()
            if words and words[0] in values:
                values[words[0]] = int(words[1]) * 1024
    return values[_FIELDS[0]], values[_FIELDS[1]]
