"""Processor time of a process, and how long its threads had to wait for a core, as the operating system counts it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from polymux.core.errors import PolymuxError


@dataclass(frozen=True, slots=True)
class ProcessorTime:
    """Times of all threads of a process together.

    Attributes
    ----------
    ran_ns : int
        On a core.
    waited_ns : int
        Ready to run, but without a core.
    """

    ran_ns: int = 0
    waited_ns: int = 0

    @classmethod
    def of(cls, pid: int) -> Self:
        """Read it for a process; threads that have ended do not count.

        Raises
        ------
        PolymuxError
            If the kernel does not count it.
        """
        ran_ns = waited_ns = 0
        for folder in Path(f"/proc/{pid}/task").iterdir():
            try:
                fields = (folder / "schedstat").read_text().split()
            except ProcessLookupError:
                continue  # the thread has just ended
            except OSError as error:
                raise PolymuxError(
                    f"cannot read the processor time of threads from {folder}/schedstat: {error.strerror}; the"
                    " benchmark needs a kernel with scheduler statistics (CONFIG_SCHED_INFO)"
                ) from error
            ran_ns += int(fields[0])
            waited_ns += int(fields[1])
        return cls(ran_ns, waited_ns)

    def __sub__(self, other: ProcessorTime) -> ProcessorTime:
        """What has passed since then."""
        return ProcessorTime(self.ran_ns - other.ran_ns, self.waited_ns - other.waited_ns)

    def __add__(self, other: ProcessorTime) -> ProcessorTime:
        """Both together."""
        return ProcessorTime(self.ran_ns + other.ran_ns, self.waited_ns + other.waited_ns)
