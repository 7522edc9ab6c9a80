"""Measures a model over a grid of shares and batches, place by place, into the store; what is there already stays."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from polymux.core.errors import InvalidRequest, PolymuxError, SegmentFull, TaskFailed
from polymux.profiles import Grid, Point, ProfileStore
from polymux.profiling.model import PreparedModel
from polymux.profiling.options import ProfileOptions
from polymux.profiling.repeats import Times, TooSlow, repeat
from polymux.profiling.target import Target, batches_on, registered


@dataclass(frozen=True, slots=True)
class Step:
    """How far a profile is.

    Parameters
    ----------
    done, total : int
        Places of the grid.
    units, batch : int
        What is measured now.
    last : Point, optional
        What was measured last.
    """

    done: int
    total: int
    units: int
    batch: int
    last: Point | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a profile did.

    Parameters
    ----------
    measured, kept : int
        Places that were measured now, and that the store had.
    grid : Grid
    left_out : str
        Why larger batches were left out; empty when none were.
    imprecise : int
        Places whose interval stayed wider than was asked for.
    """

    measured: int
    kept: int
    grid: Grid
    left_out: str
    imprecise: int


def profile(
    model: PreparedModel,
    target: Target,
    store: ProfileStore,
    options: ProfileOptions,
    report: Callable[[Step], None] = lambda _: None,
) -> Outcome:
    """Measure what the store does not have.

    A grid that was measured before is extended to one that has the wanted shares and batches too.

    Parameters
    ----------
    model : PreparedModel
    target : Target
    store : ProfileStore
        Open for writing; every place is written when it is measured, so that an interrupted profile goes on where it
        stopped.
    options : ProfileOptions
    report : callable
        Is told before each place.

    Returns
    -------
    Outcome

    Raises
    ------
    ConfigError
        If the store cannot be written.
    InvalidRequest
        If a share is not offered that is wanted, or that the grid had and that is missing at a wanted batch.
    PolymuxError
        If not even the smallest batch can be run.

    Notes
    -----
    The server should have nothing else to do.
    """
    key, device = model.record.key, target.identity.key
    wanted = Grid(target.shares(options.units), model.batches(options.batches))
    grid = _joined(wanted, store.grid(key, device))
    stored = {
        (p.units, p.batch)
        for p in store.points(key, device)
        if p.confidence >= options.confidence and not (options.again and (p.units, p.batch) in wanted.places)
    }
    target.shares(tuple(sorted({units for units, batch in grid.places if (units, batch) not in stored})))
    store.put_model(model.record)
    store.put_device(target.identity)
    store.put_costs(key, model.costs)
    store.put_grid(key, device, grid)
    total, done, measured, imprecise, left_out = len(grid.places), 0, 0, 0, ""
    last: Point | None = None
    with registered(target.client, f"{model.record.name}:profile", model.path) as kernel, _quiet():
        for units, batch in grid.places:
            if batch > grid.batches[-1]:
                break
            if (units, batch) not in stored:
                report(Step(done, total, units, batch, last))
                try:
                    times = _measure(model, target, kernel, units, batch, options)
                except (TooSlow, TaskFailed, SegmentFull) as problem:
                    grid, left_out = _without(grid, batch, problem), f"batch {batch} and more: {problem}"
                    store.put_grid(key, device, grid)
                    continue
                last = _point(units, batch, times, options)
                store.put_point(key, device, last)
                measured += 1
                imprecise += not times.is_precise
            done += 1
    kept = sum(place in stored for place in grid.places)
    return Outcome(measured, kept, grid, left_out, imprecise)


def _joined(wanted: Grid, before: Grid | None) -> Grid:
    """Extend a grid by what was measured before, so that measuring a part again takes nothing away."""
    if before is None:
        return wanted
    units = tuple(sorted({*wanted.units, *before.units}))
    return Grid(units, tuple(sorted({*wanted.batches, *before.batches})))


def _measure(
    model: PreparedModel, target: Target, kernel: str, units: int, batch: int, options: ProfileOptions
) -> Times:
    with batches_on(target, units, kernel, model.inputs, model.outputs, batch) as once:
        return repeat(once, options)


def _point(units: int, batch: int, times: Times, options: ProfileOptions) -> Point:
    return Point(
        units,
        batch,
        times.count,
        times.median_ns,
        times.mean_ns,
        times.p95_ns,
        times.min_ns,
        times.half_width_ns,
        options.confidence,
        int(time.time()),
    )


def _without(grid: Grid, batch: int, problem: PolymuxError) -> Grid:
    """Leave out a batch and all larger ones."""
    smaller = tuple(size for size in grid.batches if size < batch)
    if not smaller:
        if isinstance(problem, TooSlow):
            raise InvalidRequest(f"{problem}: allow more with --longest-batch, or measure a smaller batch")
        raise problem
    return Grid(grid.units, smaller)


@contextmanager
def _quiet() -> Iterator[None]:
    """Hold Python's garbage collector meanwhile."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
