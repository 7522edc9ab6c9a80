"""A first model of a unit that was never measured, from pieces of a call that has to be computed anyway."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from polymux.client import Queue
from polymux.coexec.call import Call
from polymux.coexec.queues import Queues
from polymux.coexec.run import CALLERS_FAULT
from polymux.coexec.units import Unit
from polymux.core.errors import PolymuxError, ServerGone
from polymux.perfmodel.coexec.adapt import Chunk
from polymux.perfmodel.coexec.compute import ComputeModel
from polymux.perfmodel.coexec.compute_fit import fit_compute
from polymux.perfmodel.coexec.features import Sample
from polymux.segment import now_ns

PART = 16
"""Of a call, one in so many is a piece to measure by."""
LARGEST_WORK = 1e9
"""Operations of a piece at most, so that a slow device is found out soon."""
REPEATS = 3


def probe_all(
    call: Call, units: Iterable[Unit], queues: Queues, learn: Callable[[Unit, ComputeModel], None]
) -> Mapping[str, PolymuxError]:
    """Measure units one after the other; what failed, by their ids.

    Raises
    ------
    BadArgument, BadBuffer, InvalidTask
        What would fail on every unit.
    ServerGone
    """
    failures: dict[str, PolymuxError] = {}
    for unit in units:
        try:
            with queues.lend([unit]) as lanes:
                learn(unit, probe(call, unit, lanes[unit]))
        except (*CALLERS_FAULT, ServerGone):
            raise
        except PolymuxError as error:
            failures[unit.id] = error
    return failures


def probe(call: Call, unit: Unit, queue: Queue) -> ComputeModel:
    """Measure a unit on the first part of a call, whose result is computed again later.

    Parameters
    ----------
    call : Call
    unit : Unit
    queue : Queue
        Of the unit's stream.

    Raises
    ------
    TaskFailed
        What its kernel failed with.

    Notes
    -----
    The first run builds or loads what the kernel needs and does not count. `polymux calibrate` measures over all sizes.
    """
    problem = call.way.problem
    most = max(1, int(LARGEST_WORK / problem.unit_work)) if problem.unit_work > 0 else problem.extent
    counts = sorted({min(problem.extent, most, max(1, problem.extent // part)) for part in (PART, 4 * PART)})
    samples = []
    _timed(call, unit, queue, counts[-1])
    for count in counts:
        samples += [Sample(problem.features(count), _timed(call, unit, queue, count)) for _ in range(REPEATS)]
    return fit_compute(samples)


def _timed(call: Call, unit: Unit, queue: Queue, count: int) -> float:
    begun_ns = now_ns()
    piece = call.submit(queue, unit, Chunk(0, count))
    try:
        piece.task.wait()
        return (now_ns() - begun_ns) / 1e9
    finally:
        piece.drop()
