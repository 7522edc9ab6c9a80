"""What an application is: inputs of a wished-for size, a run over lanes, a reference, and a check against it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from polymux.apps.lane import Lane, QueueLane
from polymux.core.errors import PolymuxError

Arrays = dict[str, NDArray[Any]]


class WrongResult(PolymuxError):
    """An application's result is not that of its reference; the message tells the largest error and where it is."""


class Application(ABC):
    """A computation on host arrays, divided into tasks for one or more lanes.

    Attributes
    ----------
    name : str
        In the registry and on the command line.
    title : str
        What it computes, in one sentence.
    kernels : tuple of str
        Built-in kernels that it submits.
    inputs : dict of str to ndarray
        What a run reads and never changes; `place` moves it into shared memory.
    nbytes : int
        Bytes of all buffers that a run on one lane allocates.

    Notes
    -----
    The same object may be run many times, over different lanes.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    kernels: ClassVar[tuple[str, ...]]
    inputs: Arrays
    nbytes: int

    @classmethod
    @abstractmethod
    def of_size(cls, nbytes: int, seed: int = 0) -> Self:
        """Make one whose buffers together take about `nbytes`.

        Parameters
        ----------
        nbytes : int, bytes
            From 1 MiB; small ones are fine for tests.
        seed : int
            Of the random inputs.
        """

    @abstractmethod
    def run(self, lanes: Sequence[Lane]) -> Arrays:
        """Compute, from `inputs` to host arrays, divided over the lanes.

        Returns
        -------
        dict of str to ndarray
            Valid while the lanes are open.
        """

    @abstractmethod
    def reference(self) -> Arrays:
        """Compute the same with NumPy, independently of the kernels."""

    @abstractmethod
    def check(self, result: Mapping[str, NDArray[Any]]) -> None:
        """Compare a result with the reference.

        Raises
        ------
        WrongResult
            With the largest error and where it is.
        """

    def place(self, lane: QueueLane) -> None:
        """Move the inputs into memory that the lane's application shares with the server.

        As a program does that reads its data from a file: straight into its buffers, so that a run copies nothing.
        """
        self.inputs = {name: lane.place(array) for name, array in self.inputs.items()}


def require_equal(name: str, found: NDArray[Any], expected: NDArray[Any]) -> None:
    """Check that two arrays hold the same numbers.

    Raises
    ------
    WrongResult
        With how many differ, and the first of them.
    """
    _require_same_shape(name, found, expected)
    differing = np.argwhere(found != expected)
    if len(differing):
        first = tuple(int(i) for i in differing[0])
        raise WrongResult(
            f"{name}: {len(differing)} of {expected.size} elements differ; {name}{list(first)} is {found[first]},"
            f" expected {expected[first]}"
        )


def require_close(name: str, found: NDArray[Any], expected: NDArray[Any], tolerance: float) -> None:
    """Check that no element is further from the expected one than `tolerance` times the largest expected magnitude.

    Raises
    ------
    WrongResult
        With the largest error and where it is; NaN is the largest of all.
    """
    _require_same_shape(name, found, expected)
    if not expected.size:
        return
    scale = float(np.abs(expected).max()) or 1.0
    error = np.abs(found.astype(np.float64) - expected) / scale
    where = np.unravel_index(int(np.argmax(np.where(np.isnan(error), np.inf, error))), error.shape)
    if not error[where] <= tolerance:
        place = [int(i) for i in where]
        raise WrongResult(
            f"{name}{place} is {found[where]}, expected {expected[where]}: an error of {error[where]:.1e} of the"
            f" largest value, allowed are {tolerance:.1e}"
        )


def _require_same_shape(name: str, found: NDArray[Any], expected: NDArray[Any]) -> None:
    if found.shape != expected.shape:
        raise WrongResult(f"{name} has shape {found.shape}, expected {expected.shape}")
