"""Where the job's threads run: on the cores of the device that it has, as many threads as before."""

from __future__ import annotations

import torch

from polymux.training.affinity import current_cores, move_to_cores
from polymux.training.lease_keeper import Lease


class Placement:
    """Moves the process between the cores of devices, and back in the end.

    Parameters
    ----------
    same_threads : bool
        Keep PyTorch's number of threads, on which results depend in their last bits.
    """

    def __init__(self, same_threads: bool) -> None:
        self._same_threads = same_threads
        self._cores = self._cores_before = current_cores()
        self._threads = self._threads_before = torch.get_num_threads()

    def move(self, lease: Lease) -> None:
        """Go where the lease is; for all threads, at once.

        Raises
        ------
        DeviceUnavailable
            When the operating system refuses.
        """
        cores = tuple(sorted(lease.cores)) or self._cores_before
        if cores != self._cores:
            move_to_cores(cores)
            self._cores = cores
        self._threads = lease.threads or self._threads_before

    def step_done(self) -> None:
        """Change the number of threads, which nothing may notice in the middle of a step."""
        if not self._same_threads and torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)

    def restore(self) -> None:
        """Go back to where the process was."""
        if self._cores != self._cores_before:
            move_to_cores(self._cores_before)
            self._cores = self._cores_before
        if torch.get_num_threads() != self._threads_before:
            torch.set_num_threads(self._threads_before)
