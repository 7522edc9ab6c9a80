"""Faults that a simulated device has been told to have, to see what others make of them.

::

    [faults]                            # keys that are left out: no such fault
    launches_after = 100                # launches fail once so many have succeeded
    launches = 3                        # how many of them fail; left out: all that follow
    kernel = "gemm"                     # launches of this kernel only, counted by themselves
    copies_after = 20                   # the same for copies into the device and out of it
    copies = 1
    allocation = 5                      # the fifth allocation is refused
    hang_launch = 7                     # the seventh launch takes so much longer
    hang_ns = 2000000000
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from polymux.core.status import TaskStatus
from polymux.device.protocol import LaunchError, OutOfMemory

ALL = 2**62
"""More than anybody counts to."""


@dataclass(frozen=True, slots=True)
class FaultModel:
    """Which faults a device has; the keys of ``[faults]``."""

    launches_after: int = ALL
    launches: int = ALL
    kernel: str = ""
    copies_after: int = ALL
    copies: int = ALL
    allocation: int = 0
    hang_launch: int = 0
    hang_ns: int = 0


class Faults:
    """Counts what a device does and has it fail when its time has come; used by all of its streams.

    Parameters
    ----------
    device : str
        Named in errors.
    model : FaultModel
    """

    def __init__(self, device: str, model: FaultModel) -> None:
        self._device = device
        self._model = model
        self._lock = threading.Lock()
        self._launches = self._of_kernel = self._copies = self._allocations = 0

    def launch(self, kernel: str) -> tuple[int, LaunchError | None]:
        """Count a launch.

        Returns
        -------
        int, ns
            By how much it takes longer.
        LaunchError or None
            What its end will be.
        """
        model = self._model
        with self._lock:
            self._launches += 1
            hang_ns = model.hang_ns if self._launches == model.hang_launch else 0
            if model.kernel not in ("", kernel):
                return hang_ns, None
            self._of_kernel += 1
            number = self._of_kernel - model.launches_after
        fails = 0 < number <= model.launches
        return hang_ns, self._failed(f"launch {self._of_kernel} of it") if fails else None

    def copy(self) -> None:
        """Count a copy.

        Raises
        ------
        LaunchError
            DEVICE_FAILED.
        """
        with self._lock:
            self._copies += 1
            number = self._copies - self._model.copies_after
        if 0 < number <= self._model.copies:
            raise self._failed(f"copy {self._copies}")

    def allocate(self, nbytes: int) -> None:
        """Count an allocation.

        Raises
        ------
        OutOfMemory
        """
        with self._lock:
            self._allocations += 1
            refused = self._allocations == self._model.allocation
        if refused:
            raise OutOfMemory(
                f"{self._device} cannot allocate {nbytes} bytes: its description has allocation"
                f" {self._model.allocation} refused"
            )

    def _failed(self, what: str) -> LaunchError:
        return LaunchError(TaskStatus.DEVICE_FAILED, f"{self._device} failed as its description says: {what}")
