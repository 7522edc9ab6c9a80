"""D-STACK's analytical model of a DNN: why a model has a knee, and where.

A DNN is a row of kernels whose parallel work falls. Each starts serially, then its parallel operations run on the
compute units that it is given, at most one operation on a unit at a time. More units shorten the early kernels, which
have more parallel operations than units, and do nothing for the late ones: that is the knee.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite, sqrt

import numpy as np
from numpy.typing import NDArray

from polymux.core.errors import InvalidRequest

Floats = NDArray[np.float64]
EXAMPLE_KERNELS = 50
EXAMPLE_OPERATION_NS = 40.0
EXAMPLE_START_NS = 10.0
"""K_max, t_p and t_np of the paper's example, with N_1 of 20, 40 and 60; its unit of time is taken as 1 ns."""


@dataclass(frozen=True, slots=True)
class AnalyticalDnn:
    """A DNN by the paper's equations 1 to 5; a latency surface.

    Parameters
    ----------
    parallel_operations : float
        p: of the first kernel, for one item.
    kernels : int
        K_max.
    operation_ns : float, ns
        t_p: time of one parallel operation.
    start_ns : float, ns
        t_np: serial start of a kernel.
    repetitions : tuple of int, one for each kernel
        R_i; empty: all 1.
    nbytes : tuple of float, one for each kernel, bytes
        d_i: data of each kernel; empty: none, no memory term.
    unit_bandwidth_bytes_per_s : float, bytes/s
        M: memory bandwidth of one compute unit; the bandwidth grows with the units.
    max_batch : int

    Raises
    ------
    InvalidRequest
        If a number is out of its range, or a tuple has not one entry for each kernel.

    References
    ----------
    D-STACK, equations 1 to 5. Equation 3 is remembered from the paper, not read again.
    """

    parallel_operations: float
    kernels: int
    operation_ns: float
    start_ns: float
    repetitions: tuple[int, ...] = ()
    nbytes: tuple[float, ...] = ()
    unit_bandwidth_bytes_per_s: float = inf
    max_batch: int = 1

    def __post_init__(self) -> None:
        for name, value, least in (
            ("parallel_operations", self.parallel_operations, 1),
            ("kernels", self.kernels, 1),
            ("operation_ns", self.operation_ns, 0),
            ("start_ns", self.start_ns, 0),
            ("max_batch", self.max_batch, 1),
        ):
            if not (value >= least and isfinite(value)):
                raise InvalidRequest(f"analytical model: {name} is {value}; give {least} or more")
        if not self.unit_bandwidth_bytes_per_s > 0 or self.operation_ns == 0:
            raise InvalidRequest(
                f"analytical model: operation_ns is {self.operation_ns}, unit_bandwidth_bytes_per_s is"
                f" {self.unit_bandwidth_bytes_per_s}; give more than 0"
            )
        for name, values in (("repetitions", self.repetitions), ("nbytes", self.nbytes)):
            if len(values) not in (0, self.kernels) or min(values, default=0) < 0:
                raise InvalidRequest(
                    f"analytical model: {name} has {len(values)} entries for {self.kernels} kernels, the least"
                    f" {min(values, default=0)}; give one of 0 or more for each kernel"
                )

    def operations(self, batch: int) -> Floats:
        """Parallel operations of each kernel: N_1 = p*b, N_i = N_{i-1} - p*b/K_max.

        Returns
        -------
        array of float64, shape (kernels,)

        References
        ----------
        D-STACK, equation 1.
        """
        falling: Floats = self.parallel_operations * batch * (1 - np.arange(self.kernels) / self.kernels)
        return falling

    def times_ns(self, units: Sequence[int], batch: int) -> Floats:
        """Execution times on several numbers of compute units, E_t.

        Work ``W_i = N_i * t_p`` (equation 1) takes ``E_i = W_i / max(1, min(S, N_i))`` (2); its data
        ``E_m,i = d_i / (M * S)`` (3); what does not shrink by parallel work is ``W_se = sum R_i * (t_np + E_m,i)`` (4);
        and all ``E_t = W_se + sum R_i * E_i`` (5).

        Parameters
        ----------
        units : sequence of int, shape (n,)
            S: compute units.
        batch : int

        Returns
        -------
        array of float64, shape (n,), ns

        Raises
        ------
        InvalidRequest
            If a number is below 1.

        References
        ----------
        D-STACK, equations 1 to 5.
        """
        if not len(units) or min(*units, batch) < 1:
            raise InvalidRequest(f"a batch of {batch} on {tuple(units)} units; give 1 or more of both")
        given = np.asarray(units, np.float64)[:, None]
        n = self.operations(batch)[None, :]
        repetitions = np.asarray(self.repetitions or np.ones(self.kernels), np.float64)
        data = np.asarray(self.nbytes or np.zeros(self.kernels), np.float64)
        parallel_ns = n * self.operation_ns / np.maximum(1, np.minimum(given, n))
        memory_ns = 1e9 * data / (self.unit_bandwidth_bytes_per_s * given)
        times: Floats = ((self.start_ns + memory_ns + parallel_ns) * repetitions).sum(axis=1)
        return times

    def latency_ns(self, units: int, batch: int) -> int:
        """Time of one batch on `units` compute units, in ns, rounded, at least 1.

        Raises
        ------
        InvalidRequest
            If `units` or `batch` is below 1.
        """
        return max(1, round(float(self.times_ns([units], batch)[0])))

    def knee(self, most_units: int, batch: int = 1) -> int:
        """Number of compute units, 1 to `most_units`, at which ``1 / (E_t**2 * S)`` is largest.

        That is the derivative of ``1 / (E_t * S)`` with respect to E_t, up to its sign.

        Raises
        ------
        InvalidRequest
            If `most_units` or `batch` is below 1.

        References
        ----------
        D-STACK, equation 6.
        """
        return knee_of_times(self.times_ns(range(1, most_units + 1), batch))


def knee_of_times(times_ns: Floats) -> int:
    """Number of compute units at which ``1 / (E_t**2 * S)`` is largest.

    Parameters
    ----------
    times_ns : array of float64, shape (n,), ns
        On 1 to n compute units.

    References
    ----------
    D-STACK, equation 6.
    """
    return int(np.argmax(merit_of_times(times_ns))) + 1


def merit_of_times(times_ns: Floats) -> Floats:
    """``1 / (E_t**2 * S)`` on 1 to n compute units, in parts of its largest.

    Parameters
    ----------
    times_ns : array of float64, shape (n,), ns

    Returns
    -------
    array of float64, shape (n,)
    """
    merit: Floats = 1 / (times_ns**2 * np.arange(1, len(times_ns) + 1))
    parts: Floats = merit / merit.max()
    return parts


def knee_of_many_kernels(first_operations: float, start_over_operation: float) -> float:
    """Knee of a DNN of many kernels without a memory term: ``S = N_1 * (sqrt(r**2 + 3) - r) / 3``.

    With many kernels the sum over them is an integral, ``E_t = K_max * t_p * (r + s/2 + 1/(2*s))`` with ``s = S / N_1``
    up to 1; the derivative of ``2 * ln E_t + ln s`` vanishes where ``3*s**2 + 2*r*s = 1``.

    Parameters
    ----------
    first_operations : float
        N_1 = p*b.
    start_over_operation : float
        r = t_np / t_p.

    Returns
    -------
    float, compute units
        At most ``N_1 / sqrt(3)``; it falls as the serial part grows.

    Raises
    ------
    InvalidRequest
        If `first_operations` is not positive or `start_over_operation` is negative.
    """
    if not (first_operations > 0 and start_over_operation >= 0):
        raise InvalidRequest(
            f"knee for {first_operations} operations at r = {start_over_operation}; give more than 0, and r of 0 or"
            " more"
        )
    r = start_over_operation
    return first_operations * (sqrt(r * r + 3) - r) / 3


def fitted_example_times_ns(first_operations: int, units: Sequence[int]) -> Floats:
    """The paper's example by a variant that was FITTED to its three knees; it is not in the paper.

    ``sum over i of 10 + 10.6 * p / S + 40 * max(1, N_i / S)`` with ``N_i = floor(N_{i-1} - p / K_max)``. The plain
    equations have their knees at 10, 20 and 30 units; the paper says 9, 24 and 31, and this variant says so too,
    because 10.6 was chosen for it.

    Parameters
    ----------
    first_operations : int
        N_1 = p.
    units : sequence of int, shape (n,)

    Returns
    -------
    array of float64, shape (n,), ns
    """
    steps = [float(first_operations)]
    while len(steps) < EXAMPLE_KERNELS:
        steps.append(max(0.0, np.floor(steps[-1] - first_operations / EXAMPLE_KERNELS)))
    given = np.asarray(units, np.float64)[:, None]
    parallel = EXAMPLE_OPERATION_NS * np.maximum(1, np.array(steps)[None, :] / given)
    times: Floats = (EXAMPLE_START_NS + 10.6 * first_operations / given + parallel).sum(axis=1)
    return times
