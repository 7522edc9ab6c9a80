"""A session of co-execution: operations on arrays, computed by all devices of a server together."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, perf_counter
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from polymux.client import Client
from polymux.client.placed import PlacedArray, placed
from polymux.coexec.call import Call, call_key, check_out, give_out, place_out
from polymux.coexec.company import octave
from polymux.coexec.failed import Failed
from polymux.coexec.knowledge import HANDOVER_S, HELPED_S, Knowledge, Planned, Shelf
from polymux.coexec.loads import Loads
from polymux.coexec.operation import Array, Operation, Way
from polymux.coexec.probe import probe_all
from polymux.coexec.queues import Queues
from polymux.coexec.registered import Registered
from polymux.coexec.report import Report
from polymux.coexec.run import Ran, Run
from polymux.coexec.units import Unit, usable
from polymux.core.errors import InvalidRequest, PolymuxError
from polymux.perfmodel.coexec.compute import ComputeModel
from polymux.perfmodel.coexec.precision import Precision
from polymux.perfmodel.coexec.problem import Objective
from polymux.perfmodel.energy import PowerModel
from polymux.profiles.default_path import default_store_path
from polymux.sched.coexec.dispatcher import Dispatcher

ObjectiveLike = str | Mapping[str, float] | Objective
_REMEMBERED = 256
_SAVE_EVERY_S = 30.0


@dataclass(slots=True, eq=False)
class _Known:
    """What is known of equal calls: how they can be split, on which units, and how many there were."""

    ways: tuple[Way, ...]
    shelf: Shelf
    units: tuple[Unit, ...]
    until_s: float
    """From when on units that had failed are to be tried again."""
    runs: int = 0
    run_s: float = 0.0
    """Predicted for the last one."""


class Session:
    """Co-execution on the devices of one server; several threads may call at a time.

    Parameters
    ----------
    client : Client
        The connection; stays the caller's.
    store : str or Path, optional
        Profile store with the devices' models, which also keeps what is learned; ``$POLYMUX_PROFILES`` or this user's
        by default, False for none.
    power : mapping of str to PowerModel, optional
        Power of devices ("opencl:0") or streams, for objectives with energy where it cannot be read.
    steal : bool
        Whether units that are early take pieces from those that are late.

    Attributes
    ----------
    last : Report or None
        Of the call that ended last.
    """

    def __init__(
        self,
        client: Client,
        *,
        store: str | Path | bool | None = None,
        power: Mapping[str, PowerModel] | None = None,
        steal: bool = True,
    ) -> None:
        path = None if store is False else default_store_path() if store in (None, True) else Path(str(store))
        self.client = client
        self.steal = steal
        self.last: Report | None = None
        self._lock = threading.RLock()
        self._probing = threading.Lock()
        self._saving = threading.Lock()
        self._knowledge = Knowledge(client, path, dict(power or {}))
        self._loads = Loads()
        self._queues = Queues(client)
        self._memory = client.queue("coexec arrays")
        self._calls: OrderedDict[Any, _Known] = OrderedDict()
        self._registered = Registered(client)
        self._failed = Failed()
        self._saved_s = monotonic()

    # Arrays

    def empty(self, shape: int | Sequence[int], dtype: npt.DTypeLike = np.float32) -> PlacedArray:
        """Make an array, with undefined content, in memory that the server shares, so that calls need no copy of it."""
        extents = shape if isinstance(shape, int) else tuple(shape)
        return placed(self._memory.empty(extents, dtype))

    def array(self, array: npt.ArrayLike) -> PlacedArray:
        """Copy an array into memory that the server shares; one that lies there already is returned as it is."""
        source = np.asanyarray(array)
        if isinstance(source, PlacedArray):
            buffer = source.whole()
            if buffer is not None and buffer.client is self.client:
                return source
        return placed(self._memory.array(source))

    # Calls

    def run(
        self,
        operation: Operation,
        *inputs: npt.ArrayLike,
        out: Sequence[Array] | None = None,
        objective: ObjectiveLike = "time",
        devices: Collection[str] | None = None,
        precision: Precision | None = None,
        **parameters: Any,
    ) -> tuple[Array, ...]:
        """Compute an operation.

        Parameters
        ----------
        operation : Operation
        *inputs : array_like
            As the operation takes them; copied into shared memory unless they lie there (`array`, or results of calls).
        out : sequence of ndarray, optional
            For the results, of their shapes and dtypes.
        objective : {"time", "energy"}, mapping or Objective
            What to minimise; weights as ``{"time": 1, "energy": 0.01}``, in s and J.
        devices : collection of str, optional
            Devices ("cpu:0"), streams ("opencl:0/1") or units ("cpu:1/0/coexec_gemm_bf16") that may be used.
        precision : str, optional
            The lowest precision that the result may be computed in, such as ``"bf16"``; by default that of the arrays.
        **parameters
            Of the operation.

        Returns
        -------
        tuple of ndarray

        Raises
        ------
        InvalidRequest
            For inputs that do not fit, when no device may compute it, and when the operation's name stands for other
            kernels in this session.
        SegmentFull
            When the arrays have no room in shared memory; `polymux.connect` takes its size.
        """
        arrays = tuple(np.asanyarray(array) for array in inputs)
        specs = operation.outputs(*arrays, **parameters)
        check_out(out, specs)
        results = tuple(
            self.empty(*spec) if (there := place_out(self.client, out, at, arrays)) is None else there
            for at, spec in enumerate(specs)
        )
        filled = all(result.size for result in results)
        if filled and not all(array.size for array in arrays):
            operation.of_nothing(results)
        elif filled:
            sources = tuple(self.array(array) for array in arrays)
            wanted = objective if isinstance(objective, Objective) else Objective.parse(objective)
            names = None if devices is None else frozenset([devices] if isinstance(devices, str) else devices)
            self._compute(operation, sources, results, wanted, names, precision, parameters)
        return tuple(give_out(out, at, result) for at, result in enumerate(results))

    def _compute(
        self,
        operation: Operation,
        sources: tuple[PlacedArray, ...],
        results: tuple[PlacedArray, ...],
        objective: Objective,
        names: frozenset[str] | None,
        precision: Precision | None,
        parameters: Mapping[str, Any],
    ) -> None:
        key = call_key(operation, sources, parameters, names, precision, objective)
        excluded: dict[str, PolymuxError] = {}
        while True:
            with self._lock:
                found = self._calls.get(key)
            if excluded or found is None or monotonic() > found.until_s:
                found = self._prepare(
                    key, operation, sources, results, names, precision, parameters, excluded
                )
            failures = self._once(found, operation.name, sources, results, objective)
            if not failures:
                return
            excluded.update(failures)

    def _once(
        self,
        found: _Known,
        operation: str,
        sources: tuple[PlacedArray, ...],
        results: tuple[PlacedArray, ...],
        objective: Objective,
    ) -> Mapping[str, PolymuxError]:
        """Plan and run a call; the failures, when all that took part have failed and others could compute it."""
        began_s = perf_counter()
        ways, shelf, units = found.ways, found.shelf, found.units
        with self._lock:
            found.runs += 1
            loads = self._loads.now(units) if found.run_s >= HELPED_S else {}
            planned = shelf.plan(found, ways, units, objective, loads)
            found.run_s = planned.plan.predicted_s
            taking = planned.taking_part(objective)
            models = [planned.models[unit.id] for unit in taking]
            its_loads = planned.loads(loads)
            work = Dispatcher(planned.plan, models, loads=its_loads, steal=self.steal, handover_s=HANDOVER_S)
            has_lane = work.units
            taking = tuple(unit for unit in taking if unit.id in has_lane)
            self._loads.begin(taking)
        planned_s = perf_counter()
        try:
            with self._queues.lend(taking) as queues:
                call = Call(planned.way, sources, results)
                run = Run(self.client, call, list(queues.items()), work, planned.expected_s)
                try:
                    done = run.carry_out(len(units) > len(taking))
                finally:
                    with self._lock:
                        self._note_failures(run.failures)
        finally:
            with self._lock:
                self._loads.end(taking)
        ended_s = perf_counter()
        with self._lock:
            if not done:
                return run.failures
            plan_s, run_s = planned_s - began_s, ended_s - planned_s
            failures, trouble = run.failures, self._knowledge.trouble
            self.last = Report(operation, planned, plan_s, run_s, work.runs, failures, trouble)
            self._learn(found, planned, run, ended_s - began_s)
        self._look_around(run_s)
        return {}

    def _prepare(
        self,
        key: Any,
        operation: Operation,
        sources: tuple[PlacedArray, ...],
        results: tuple[PlacedArray, ...],
        names: frozenset[str] | None,
        precision: Precision | None,
        parameters: Mapping[str, Any],
        excluded: dict[str, PolymuxError],
    ) -> _Known:
        """Find out how calls like this one can be split, and on which units; measures units that nobody knows."""
        while True:
            with self._lock:
                ways = tuple(operation.ways(*sources, **parameters))
                shelf = self._shelf(operation, results[0].dtype)
                units = self._usable(operation, shelf, names, precision, excluded)
                unknown = shelf.unknown(units)
            if unknown:
                excluded.update(self._probe(shelf, unknown, Call(ways[0], sources, results)))
            with self._lock:
                left = set(shelf.unknown(units))
                known = _Known(
                    ways, shelf, tuple(unit for unit in units if unit not in left), self._failed.until_s()
                )
                if known.units:
                    self._calls[key] = known
                    if len(self._calls) > _REMEMBERED:
                        self._calls.popitem(last=False)
                    return known

    def _probe(self, shelf: Shelf, unknown: Sequence[Unit], call: Call) -> Mapping[str, PolymuxError]:
        """Measure units of which nothing is known on pieces of this call, one after the other; what failed."""

        def learn(unit: Unit, compute: ComputeModel) -> None:
            with self._lock:
                shelf.learn(unit, compute)

        with self._probing:
            failures = probe_all(call, shelf.unknown(unknown), self._queues, learn)
        with self._lock:
            self._failed.note(failures)
        return failures

    def _learn(self, known: _Known, planned: Planned, run: Run, run_s: float) -> None:
        """Refine the models by what a run took, unless something disturbed it."""
        problem, company = planned.way.problem, known.shelf.company
        by_unit: dict[Unit, list[Ran]] = {}
        for ran in run.ran:
            by_unit.setdefault(ran.unit, []).append(ran)
        beside = frozenset(unit.id for unit in by_unit)
        busy_s = {unit: sum(ran.seconds for ran in pieces) for unit, pieces in by_unit.items()}
        longest_s = 0.0
        for unit, pieces in by_unit.items():
            expected_s = sum(ran.expected_s for ran in pieces)
            if not unit.place.on_host:  # the times of others have copies in them
                longest_s = max(longest_s, busy_s[unit])
                continue
            alone_s = expected_s / planned.slowdowns.get(unit.id, 1.0)
            took_s = busy_s[unit] if len(beside) > 1 else run_s
            company.saw(unit.id, beside, problem, took_s / alone_s)
            longest_s = max(longest_s, alone_s * company.slowdown(unit.id, beside, problem))
            if self._loads.saw(unit, busy_s[unit], expected_s, (beside, octave(problem))):
                slowdown = company.slowdown(unit.id, beside, problem) if len(beside) > 1 else 1.0
                for ran in pieces:
                    known.shelf.observe(unit, problem.features(ran.chunk.count), ran.seconds / slowdown)
        if len(beside) > 1:
            company.took_together(beside, problem, run_s, longest_s, max(busy_s.values()))
        known.shelf.refine(known.runs)
        if monotonic() - self._saved_s > _SAVE_EVERY_S:
            self._saved_s = monotonic()
            threading.Thread(target=self.save, name="polymux-coexec-save", daemon=True).start()

    def _look_around(self, run_s: float) -> None:
        """Ask the server what else runs, where that is due; the call is complete, so no failure here is its own."""
        with self._lock:
            if not self._loads.wants_sample(run_s):
                return
        begun_s = perf_counter()
        try:
            status = self.client.status()
        except PolymuxError:  # the next call tells when the server is gone
            return
        with self._lock:
            self._loads.sampled(status, str(self.client.session), perf_counter() - begun_s)

    def _note_failures(self, failures: Mapping[str, PolymuxError]) -> None:
        """Leave units that have failed out for a while."""
        if failures:
            self._failed.note(failures)
            self._calls.clear()

    def _usable(
        self,
        operation: Operation,
        shelf: Shelf,
        names: frozenset[str] | None,
        precision: Precision | None,
        excluded: Mapping[str, PolymuxError],
    ) -> tuple[Unit, ...]:
        found = usable(shelf.units, shelf.dtype, precision, names)
        if found:
            return self._failed.choose(found, excluded)
        there = ", ".join(sorted({unit.id for unit in usable(shelf.units, shelf.dtype, precision, None)}))
        asked = "" if names is None else f" among {', '.join(sorted(names))}"
        raise InvalidRequest(
            f"no device{asked} computes {operation.name} of {shelf.dtype}; those that do: {there or 'none'}"
        )

    def _shelf(self, operation: Operation, dtype: np.dtype[Any]) -> Shelf:
        if self._registered.add(operation):
            self._knowledge.forget_kernels()
        return self._knowledge.shelf(operation, dtype)

    # What it knows

    def units(self, operation: Operation, dtype: npt.DTypeLike = np.float32) -> tuple[Unit, ...]:
        """List the units of an operation: each kernel on each stream that has it."""
        with self._lock:
            return self._shelf(operation, np.dtype(dtype)).units

    def refresh(self) -> None:
        """Look again at which devices the server has, and at what the profile store says of them."""
        self.save()
        with self._lock:
            self._knowledge.refresh()
            self._calls.clear()

    def save(self) -> None:
        """Write what was learned to the profile store; `close` does so too."""
        with self._saving:
            with self._lock:
                learned = self._knowledge.learned()
            if not self._knowledge.write(learned):
                with self._lock:
                    self._knowledge.restore(learned)

    def close(self) -> None:
        """Keep what was learned and close the queues; arrays stay readable."""
        self.save()
        self._queues.close()
        self._memory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
