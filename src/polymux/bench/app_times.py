"""Run times of an application: directly and through servers, in turns, every result checked."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from types import TracebackType
from typing import Self

import numpy as np

from polymux.apps.application import Application, Arrays, require_close
from polymux.apps.lane import Lane
from polymux.apps.native_lane import NativeLane, native_lanes
from polymux.bench.app_setups import Setups
from polymux.bench.effort import MIB
from polymux.core.errors import PolymuxError

LONGEST_RUN_S = 60.0
"""Sizes at which a run takes longer are left out."""
SHORT_RUN_S = 0.2
"""Runs that are shorter are repeated more often."""
SHORT_RUN_TIMES = 3
LONG_RUN_S = 2.0
"""Runs that are longer are warm after one, and are repeated for `REPEATED_S` at most."""
REPEATED_S = 20.0
REFERENCE_NBYTES = 64 * MIB
"""Larger applications are checked against the native result, since NumPy's takes minutes."""


class TooLong(PolymuxError):
    """A run takes longer than `LONGEST_RUN_S`."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Median run times in seconds.

    Parameters
    ----------
    native_s : float
        The kernels called directly.
    polymux_s : float
        Through a server.
    copied_s : float, optional
        Through a server, the inputs copied into buffers by every run.
    """

    native_s: float
    polymux_s: float
    copied_s: float | None = None


class Native:
    """A native lane of its own; a context manager.

    Raises
    ------
    DeviceUnavailable
        If the API has no device here.
    """

    def __init__(self, api: str) -> None:
        self.api = api

    def __enter__(self) -> Self:
        (self.lane,) = native_lanes(self.api)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.lane.close()

    def fresh(self) -> NativeLane:
        """Return the lane without the memory of earlier applications."""
        self.lane.trim()
        return self.lane


def measure(
    application: Application, native: Native, setups: Setups, rounds: int, *, copied: bool = False
) -> list[Measured]:
    """Measure one application.

    Parameters
    ----------
    application : Application
    native : Native
        For the baseline.
    setups : Setups
        Running servers.
    rounds : int
        Measured runs of each; short ones are repeated more often.
    copied : bool
        Whether to measure runs that copy their inputs as well.

    Returns
    -------
    list of Measured
        One for each set-up.

    Raises
    ------
    TooLong
        When the first run took longer than `LONGEST_RUN_S`.
    WrongResult
        When a result is not right.
    """
    usual = application.inputs
    segment_nbytes = 2 * application.nbytes + 256 * MIB
    with ExitStack() as stack:
        runs: list[_Runs] = [_Runs(application, [native.fresh()], usual)]
        expected = runs[0].first()
        for setup in setups.setups:
            lanes = setups.lanes(setup, segment_nbytes, stack)
            application.inputs = usual
            application.place(lanes[0])
            runs.append(_Runs(application, lanes, application.inputs))
            if copied:
                runs.append(_Runs(application, lanes, usual))
        application.inputs = usual
        checked = application.check if application.nbytes <= REFERENCE_NBYTES else _same_as(expected)
        checked(expected)
        for one in runs[1:]:
            checked(one.first())
        for _ in range(_times(rounds, runs[0].warm_s)):
            for one in runs:
                one.again()
        medians = [median(one.seconds) for one in runs]
        stack.callback(setattr, application, "inputs", usual)
        runs.clear()
    step = 2 if copied else 1
    return [
        Measured(medians[0], medians[at], medians[at + 1] if copied else None)
        for at in range(1, len(medians), step)
    ]


class _Runs:
    """Runs of an application over the same lanes and inputs."""

    def __init__(self, application: Application, lanes: Sequence[Lane], inputs: Arrays) -> None:
        self._application, self._lanes, self._inputs = application, lanes, inputs
        self.seconds: list[float] = []
        self.warm_s = 0.0

    def first(self) -> Arrays:
        """Run twice, or once if that takes long, without counting: kernels are compiled, memory is touched.

        Returns
        -------
        dict of str to ndarray
            A copy of the result.
        """
        result: Arrays = {}
        for _ in range(2):
            self.warm_s, result = self._run()
            if self.warm_s > LONGEST_RUN_S:
                raise TooLong(f"a run takes {self.warm_s:.0f} s")
            if self.warm_s > LONG_RUN_S:
                break
        return {name: np.array(array) for name, array in result.items()}

    def again(self) -> None:
        """Run and count."""
        seconds, _ = self._run()
        self.seconds.append(seconds)

    def _run(self) -> tuple[float, Arrays]:
        self._application.inputs = self._inputs
        gc.collect()
        start = perf_counter()
        result = self._application.run(self._lanes)
        return perf_counter() - start, result


def _times(rounds: int, run_s: float) -> int:
    if run_s < SHORT_RUN_S:
        return rounds * SHORT_RUN_TIMES
    return rounds if run_s < LONG_RUN_S else max(1, min(rounds, int(REPEATED_S / run_s)))


def _same_as(expected: Arrays) -> Callable[[Arrays], None]:
    def check(result: Arrays) -> None:
        for name, array in expected.items():
            require_close(name, result[name], array, 1e-4)

    return check
