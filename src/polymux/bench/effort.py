"""How much a benchmark repeats and moves."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Effort:
    """Repetitions and sizes of the benchmarks.

    Parameters
    ----------
    rounds : int
        Rounds of each measurement; baseline and Polymux take turns, the median counts.
    calls : int
        Timed calls in one round where both sides are awake.
    sleeps : int
        Timed calls in one round where both sides have slept.
    tasks : int
        Tasks in one round of `throughput`.
    later : int
        Tasks between the first and the last issues that `throughput` compares.
    largest_nbytes : int
        Size of the largest buffer of `transfer`, and of the largest application of `apps`.
    migrations : int
        Of `training`, half of them with shared memory.
    models : int
        That `cluster` serves, on a tenth as many devices.
    applications : tuple of str
        Applications that `apps` runs; all of them if empty.
    sizes_nbytes : tuple of int
        Sizes at which `apps` runs them; its own choice if empty.
    served : tuple of str
        Models that `preempt` serves; its own choice if empty.
    loads : tuple of float
        At which `preempt` serves them, 0 to 1; its own choice if empty.
    """

    rounds: int = 5
    calls: int = 20_000
    sleeps: int = 200
    tasks: int = 3_000_000
    later: int = 1_000_000
    largest_nbytes: int = 1024 * MIB
    migrations: int = 100_000
    models: int = 10_000
    applications: tuple[str, ...] = ()
    sizes_nbytes: tuple[int, ...] = ()
    served: tuple[str, ...] = ()
    loads: tuple[float, ...] = ()


FULL = Effort()
QUICK = Effort(
    rounds=2,
    calls=2_000,
    sleeps=10,
    tasks=50_000,
    later=20_000,
    largest_nbytes=4 * MIB,
    migrations=264,
    models=60,
)
"""Says whether everything runs; its figures are rough."""
