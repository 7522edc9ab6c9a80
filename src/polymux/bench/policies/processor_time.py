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
            If the kernel does not count it, or the process has ended.
        """
        ran_ns = waited_ns = 0
        process = Path(f"/proc/{pid}")
        try:
            threads = list((process / "task").iterdir())
        except (FileNotFoundError, ProcessLookupError):
            raise _ended(pid) from None
        for folder in threads:
            try:
                fields = (folder / "schedstat").read_text().split()
            except (FileNotFoundError, ProcessLookupError) as error:
                if not process.exists():
                    raise _ended(pid) from None
                if folder.exists():
                    raise _not_counted(folder, error) from error
                continue  # the thread has just ended
            except OSError as error:
                raise _not_counted(folder, error) from error
            ran_ns += int(fields[0])
            waited_ns += int(fields[1])
        return cls(ran_ns, waited_ns)

    def __sub__(self, other: ProcessorTime) -> ProcessorTime:
        """What has passed since then."""
        return ProcessorTime(self.ran_ns - other.ran_ns, self.waited_ns - other.waited_ns)

    def __add__(self, other: ProcessorTime) -> ProcessorTime:
        """Both together."""
        return ProcessorTime(self.ran_ns + other.ran_ns, self.waited_ns + other.waited_ns)


def _ended(pid: int) -> PolymuxError:
    return PolymuxError(f"process {pid} ended while its processor time was counted; its log says why")


def _not_counted(folder: Path, error: OSError) -> PolymuxError:
    return PolymuxError(
        f"cannot read the processor time of threads from {folder}/schedstat: {error.strerror}; the benchmark needs a"
        " kernel with scheduler statistics (CONFIG_SCHED_INFO)"
    )
