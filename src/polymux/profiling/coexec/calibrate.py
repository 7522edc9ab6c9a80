"""Calibrates the shares of devices: chooses the best method of each kernel, fits models of its times, stores them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from polymux.client import Client
from polymux.core.dtype import DType
from polymux.core.errors import InvalidRequest, SegmentFull, TaskFailed
from polymux.kernel.chunks.methods import Method, methods_of
from polymux.kernel.chunks.packed import TILES, tile_of
from polymux.perfmodel.coexec.compute import ComputeModel
from polymux.perfmodel.coexec.compute_fit import fit_compute
from polymux.perfmodel.coexec.features import Sample
from polymux.perfmodel.coexec.link import LinkModel
from polymux.perfmodel.coexec.precision import Precision
from polymux.profiles import CoexecUnit, ProfileStore, coexec_identity
from polymux.profiles.coexec import BUSY
from polymux.profiles.coexec import QUICK as QUICKLY
from polymux.profiling.coexec.link import measure_link
from polymux.profiling.coexec.records import (
    OWN_PRECISION,
    Calibration,
    CalibrationOptions,
    Place,
    places,
)
from polymux.profiling.coexec.shapes import CHOICE, QUICK, SHAPES, Shape
from polymux.profiling.coexec.timing import Others, Timing, measure
from polymux.profiling.coexec.work import runs

_LOWER: dict[str, Precision] = {"_bf16": "bf16", "_tf32": "tf32", "_fp16": "fp16"}
_BETTER = 0.98
"""A method of lower precision is kept only when it takes less than this part of the time."""
_CHOICE_REPEATS = 3
_ENOUGH, _LEAST_S = 16, 0.02
"""Shapes from which on a model is fitted when the time is used up; and the least time for the samples of one."""
_ROUNDS = 3
"""How often a shape is measured at most, when the machine is busy."""


Report = Callable[[Place, str, str], None]


@dataclass(frozen=True, slots=True)
class _Way:
    """A method with what the kernel is to be told for it."""

    method: Method
    scalars: dict[str, int]

    @property
    def name(self) -> str:
        return self.method.name + (f", tile {self.scalars['tile']}" if "tile" in self.scalars else "")


@dataclass(slots=True)
class _Bench:
    """What is the same for all kernels of a share."""

    client: Client
    place: Place
    options: CalibrationOptions
    others: Others
    report: Report
    deadline: float = 0.0
    disturbed: int = field(default=0)
    is_busy: bool = field(default=False)


def calibrate(
    client: Client,
    store: ProfileStore,
    options: CalibrationOptions,
    report: Report = lambda place, kernel, doing: None,  # noqa: ARG005
    pids: Sequence[int] = (),
) -> Iterator[Calibration]:
    """Calibrate every kernel on every share of a server's devices.

    Parameters
    ----------
    client : Client
    store : ProfileStore
        Open for writing.
    options : CalibrationOptions
    report : callable
        Is told the share, the kernel and what is done.
    pids : sequence of int
        The server's processes, besides this one: their time is not that of others.

    Yields
    ------
    Calibration
        As soon as it is known, and stored.

    Notes
    -----
    The server and the machine should have nothing else to do; where they have, samples are repeated, and what stays
    doubtful says so.
    """
    others = Others((os.getpid(), *pids))
    all_places = places(client)
    for place in all_places:
        identity = coexec_identity(place.device)
        store.put_device(identity)
        stored = {unit.key: unit for unit in store.coexec(identity.key)}
        shares = sum(other.device["id"] == place.device["id"] for other in all_places)
        bench = _Bench(client, place, options, others, report)
        kernels = [*_kernels(place, options)]
        budget_s = options.device_s / shares / max(1, len(kernels))
        link: LinkModel | None = None
        for operation, kernel, precision in kernels:
            known = stored.get((place.units, kernel, options.dtype))
            if known is not None and not options.again and _is_enough(known, options):
                rate = max(
                    shape.features.work / known.compute.predict(shape.features) for shape in SHAPES[operation]
                )
                yield Calibration(place, kernel, known, rate, is_stored=True)
                continue
            if place.device["memory"] == "own" and link is None:
                report(place, "copies", "measuring")
                link = measure_link(client, place.device["id"], place.stream)
            found = _calibrate(bench, operation, kernel, precision, budget_s, link)
            found = _only_if_faster(found, operation, store.coexec(identity.key), options)
            if found.unit is not None:
                store.put_coexec(identity.key, found.unit)
            yield found


def _is_enough(known: CoexecUnit, options: CalibrationOptions) -> bool:
    """Whether what is stored spares a calibration: a whole one does, a quick one only another quick one."""
    return known.is_calibrated or (options.quick and QUICKLY in known.notes)


def _kernels(place: Place, options: CalibrationOptions) -> Iterator[tuple[str, str, Precision]]:
    """Operation, kernel and precision of what a share may compute, that of the dtype's own precision first."""
    own = OWN_PRECISION[options.dtype]
    for operation in options.operations:
        yield operation, f"coexec_{operation}", own
    if options.dtype == "f4":
        for operation in options.operations:
            for suffix, precision in _LOWER.items():
                if any(methods_of(api, _of_method(precision)) for api in place.device["apis"]):
                    yield operation, f"coexec_{operation}{suffix}", precision


def _of_method(precision: Precision) -> Any:
    return precision if precision in _LOWER.values() else "own"


def _calibrate(
    bench: _Bench, operation: str, kernel: str, precision: Precision, budget_s: float, link: LinkModel | None
) -> Calibration:
    start = time.monotonic()
    bench.disturbed, bench.is_busy = 0, False
    try:
        compared, problem = _compare(bench, operation, kernel, precision)
        if not compared:
            return Calibration(bench.place, kernel, None, why_not=problem)
        way = compared[0][0]
        bench.deadline = time.monotonic() + budget_s
        samples, rate = _samples(bench, operation, kernel, way)
    except SegmentFull as error:
        return Calibration(bench.place, kernel, None, why_not=str(error))
    library = _library(way.method)
    tile = _tile(way, operation, bench.options.dtype)
    unit = CoexecUnit(
        kernel,
        bench.place.units,
        bench.options.dtype,
        way.scalars,
        precision,
        library,
        fit_compute(samples, tile=tile),
        link,
        tile[0] if operation == "gemm" and tile else 1,
        tile[0] * 2 if operation == "gemm" and tile else 16 if operation == "gemm" else 1,
        int(time.time()),
        (*((BUSY,) if bench.is_busy else ()), *((QUICKLY,) if bench.options.quick else ())),
    )
    names = tuple((its.name, seconds) for its, seconds in compared)
    seconds = time.monotonic() - start
    return Calibration(
        bench.place, kernel, unit, rate, "", names, bench.disturbed, bench.is_busy, False, seconds
    )


def _compare(
    bench: _Bench, operation: str, kernel: str, precision: Precision
) -> tuple[list[tuple[_Way, float]], str]:
    """Times of all methods for the shapes of `CHOICE`, the best first; and what others lack."""
    found: list[tuple[_Way, float]] = []
    offered = [
        method for api in bench.place.device["apis"] for method in methods_of(api, _of_method(precision))
    ]
    problem = "; ".join(f"{method.name} needs {method.missing}" for method in offered if method.missing)
    for way in _ways(bench.place, precision):
        bench.report(bench.place, kernel, f"trying {way.name}")
        try:
            taken = [
                _time(bench, kernel, shape, way, _CHOICE_REPEATS, bench.options.device_s / 30).median_s
                for shape in (QUICK[operation][:1] if bench.options.quick else CHOICE[operation])
            ]
        except (TaskFailed, InvalidRequest) as error:
            problem = str(error)
            continue
        found.append((way, sum(taken)))
    return sorted(found, key=lambda item: item[1]), problem


def _ways(place: Place, precision: Precision) -> Iterator[_Way]:
    for api in place.device["apis"]:
        for method in methods_of(api, _of_method(precision)):
            if method.name == "packed":
                for tile in range(len(TILES)):
                    yield _Way(method, {"method": method.number, "tile": tile})
            elif method.is_installed:
                yield _Way(method, {"method": method.number})


def _samples(bench: _Bench, operation: str, kernel: str, way: _Way) -> tuple[list[Sample], float]:
    """Measure all shapes; those that the machine disturbed are measured again at the end. Also the best rate."""
    shapes = list((QUICK if bench.options.quick else SHAPES)[operation])
    kept: dict[Shape, Timing] = {}
    for number in range(_ROUNDS):
        again = []
        for index, shape in enumerate(shapes):
            bench.report(bench.place, kernel, f"{way.name}: {shape} ({index + 1} of {len(shapes)})")
            left_s = bench.deadline - time.monotonic()
            if left_s < 0 and len(kept) >= _ENOUGH:
                break
            most_s = max(_LEAST_S, 2 * left_s / (len(shapes) - index))
            timing = _time(bench, kernel, shape, way, bench.options.repeats, most_s)
            bench.disturbed += timing.disturbed
            if shape not in kept or timing.median_s < kept[shape].median_s:
                kept[shape] = timing
            if timing.is_busy:
                again.append(shape)
        if not again or time.monotonic() > bench.deadline or number == _ROUNDS - 1:
            bench.is_busy = len(again) > len(kept) // 4
            break
        shapes = again
    rate = max(shape.features.work / timing.median_s for shape, timing in kept.items())
    samples = [Sample(shape.features, seconds) for shape, its in kept.items() for seconds in its.seconds]
    return samples, rate


def _time(bench: _Bench, kernel: str, shape: Shape, way: _Way, repeats: int, most_s: float) -> Timing:
    place, options = bench.place, bench.options
    with runs(bench.client, place.stream, kernel, shape, options.dtype, way.scalars) as run:
        return measure(run, bench.others, repeats=repeats, most_s=most_s)


def _only_if_faster(
    found: Calibration, operation: str, others: Sequence[CoexecUnit], options: CalibrationOptions
) -> Calibration:
    """Leave a kernel of lower precision out where it takes as long as that of the dtype's own."""
    if found.unit is None or found.unit.precision == OWN_PRECISION[options.dtype]:
        return found
    own = (found.unit.units, f"coexec_{operation}", options.dtype)
    model = next((unit.compute for unit in others if unit.key == own), None)
    if model is None or _total_s(found.unit.compute, operation) < _BETTER * _total_s(model, operation):
        return found
    why = f"no faster than {own[1]} here (this processor computes {found.unit.precision} no faster)"
    return Calibration(found.place, found.kernel, None, found.rate, why, found.compared)


def _total_s(model: ComputeModel, operation: str) -> float:
    return sum(model.predict(shape.features) for shape in CHOICE[operation])


def _tile(way: _Way, operation: str, dtype: str) -> tuple[int, ...]:
    """To which multiples the method pads the sizes of an operation; empty: it does not."""
    if way.method.name != "packed" or operation != "gemm":
        return ()
    tile = tile_of(way.scalars["tile"])
    return tile.rows, tile.columns(DType.parse(dtype)), 1


def _library(method: Method) -> str:
    """Say what computes: a package with its version, or a program of Polymux."""
    package = method.package or {"numpy": "numpy"}.get(method.name, "")
    if not package:
        return f"Polymux, {method.name}"
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return package
