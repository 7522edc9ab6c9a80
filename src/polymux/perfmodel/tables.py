"""Models and devices from public tables, which come with the package (`data`).

What was measured and what is estimated never mix: `surface` has only the one, `scaled_surface` only the other.
"""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import accumulate
from types import MappingProxyType
from typing import Any

from polymux.core.errors import InvalidRequest
from polymux.perfmodel.device_facts import DeviceFacts
from polymux.perfmodel.flat_knee import FlatKneeSurface
from polymux.perfmodel.measurement import Measurement
from polymux.perfmodel.scaling import scale_surface
from polymux.perfmodel.surface import TableSurface

BATCH_ONE_PART = 0.2
"""What a batch of 1 takes of the time of a batch of 16 at the knee, where it was not measured.

The four measured models of the paper take 0.15 to 0.27 of it.
"""


@dataclass(frozen=True, slots=True)
class TableModel:
    """A model in the table of the D-STACK paper.

    Parameters
    ----------
    name : str
    knee_units : int
        Percent of the device.
    runtime_ns : int, ns
        Of a batch at the knee.
    batch : int, optional
        None: the paper does not say; the runtime is then that of whatever it calls a batch.
    slo_ns : int, ns, optional
        None: the paper does not say.
    stated : bool
        Whether it was read in the paper; otherwise it is remembered from it.
    framework : str, optional
        Whose measurements `surface` takes unless told otherwise; None: it was not measured.
    """

    name: str
    knee_units: int
    runtime_ns: int
    batch: int | None
    slo_ns: int | None
    stated: bool
    framework: str | None


@cache
def devices() -> Mapping[str, DeviceFacts]:
    """Map each kind of device in the tables to its facts."""
    giga, tera = 1e9, 1e12
    return MappingProxyType(
        {
            kind: DeviceFacts(
                kind=kind,
                name=row["name"],
                compute_units=row["compute_units"],
                flops_per_s=row["fp32_tflops"] * tera,
                tensor_flops_per_s=row["tensor_tflops"] * tera,
                bandwidth_bytes_per_s=row["bandwidth_gbytes_per_s"] * giga,
                memory_nbytes=row["memory_gib"] << 30,
                max_watts=row["max_watts"],
                idle_watts=row["idle_watts"],
                unit_speed=row["unit_speed"],
                source=row["source"],
            )
            for kind, row in _toml("devices.toml").items()
        }
    )


def device(kind: str) -> DeviceFacts:
    """Find a kind of device: ``"v100"``, ``"t4"``, ``"a100"``, ``"h100"``.

    Raises
    ------
    InvalidRequest
        If it is in no table.
    """
    try:
        return devices()[kind]
    except KeyError:
        raise InvalidRequest(
            f"device kind {kind!r} is in no table; give one of {', '.join(devices())}"
        ) from None


@cache
def models(kind: str) -> Mapping[str, TableModel]:
    """Map the names of the paper's models on a kind of device to what it says of them.

    Raises
    ------
    InvalidRequest
        If there is no such kind of device.
    """
    device(kind)
    rows = _toml("models.toml").get(kind, {})
    return MappingProxyType(
        {
            name: TableModel(
                name,
                row["knee_pct"],
                _ns(row["runtime_ms"]),
                row.get("batch"),
                _ns(row["slo_ms"]) if "slo_ms" in row else None,
                row["source"] == "stated",
                row.get("framework"),
            )
            for name, row in rows.items()
        }
    )


def model(kind: str, name: str) -> TableModel:
    """Find a model of the paper.

    Raises
    ------
    InvalidRequest
        If there is no such kind of device, or the paper's table has no such model for it.
    """
    try:
        return models(kind)[name]
    except KeyError:
        known = ", ".join(models(kind)) or "none"
        raise InvalidRequest(f"model {name!r} is in no table for {kind}; there are: {known}") from None


def measured(kind: str) -> dict[str, tuple[str, ...]]:
    """Map the names of measured models to the frameworks, or logs that name none, with which they were measured.

    Raises
    ------
    InvalidRequest
        If there is no such kind of device.
    """
    device(kind)
    found: dict[str, dict[str, None]] = {}
    for name, framework in _measurements(kind):
        found.setdefault(name, {})[framework] = None
    return {name: tuple(frameworks) for name, frameworks in found.items()}


def measurements(kind: str, name: str, framework: str = "") -> tuple[Measurement, ...]:
    """Measured points of a model, as published.

    Parameters
    ----------
    kind, name : str
    framework : str
        ``"TensorRT"``, ``"CNTK"``, the name of a log that does not say; empty: the one that `models` names, or else
        the first.

    Raises
    ------
    InvalidRequest
        If it was not measured there, or with that framework.
    """
    frameworks = measured(kind).get(name)
    if frameworks is None:
        known = ", ".join(measured(kind)) or "none"
        raise InvalidRequest(f"model {name!r} was not measured on {kind}; measured were: {known}")
    if not framework:
        preferred = models(kind)[name].framework if name in models(kind) else None
        framework = preferred or frameworks[0]
    if framework not in frameworks:
        raise InvalidRequest(
            f"model {name!r} was not measured with {framework!r} on {kind}; give one of {', '.join(frameworks)}"
        )
    return _measurements(kind)[name, framework]


@cache
def surface(kind: str, name: str, framework: str = "", max_batch: int = 0) -> TableSurface:
    """Measured latency surface of a model, from the medians.

    A share at which some batch was not measured is linear between its neighbours; a batch measured at one share alone
    is left out. What rises with the share, by the measurement's error, is set to the time at the smaller share.

    Parameters
    ----------
    kind, name, framework : str
        As in `measurements`.
    max_batch : int
        Largest batch that may be formed; 0: the largest that was measured.

    Raises
    ------
    InvalidRequest
        If it was not measured there, or with that framework.
    """
    points: dict[int, dict[int, int]] = {}
    for point in measurements(kind, name, framework):
        points.setdefault(point.batch, {})[point.units] = point.latency_ns
    by_batch = {batch: column for batch, column in points.items() if len(column) > 1}
    first = max(min(column) for column in by_batch.values())
    last = min(max(column) for column in by_batch.values())
    units = sorted({share for column in by_batch.values() for share in column if first <= share <= last})
    batches = sorted(by_batch)
    columns = [_column(by_batch[batch], units) for batch in batches]
    return TableSurface(tuple(units), tuple(batches), tuple(zip(*columns, strict=True)), max_batch)


@cache
def scaled_surface(
    kind: str, name: str, framework: str = "", max_batch: int = 0, source: str = "v100"
) -> TableSurface:
    """Estimated latency surface of a model on a kind of device, from its measurements on another.

    Parameters
    ----------
    kind, name, framework, max_batch
        As in `surface`, of a model that was measured on `source`.
    source : str
        Kind of device on which it was measured.

    Raises
    ------
    InvalidRequest
        If it was not measured on `source`, or with that framework, or a kind of device is in no table.

    Notes
    -----
    `polymux.perfmodel.scaling` tells the rule and its error.
    """
    points = measurements(source, name, framework)
    units_ratio, unit_speed = _compare(kind, source)
    return scale_surface(points, device(kind).shares, units_ratio, unit_speed, max_batch)


@cache
def flat_knee(kind: str, name: str) -> FlatKneeSurface:
    """The paper's assumption for one of its models: flat above its knee.

    A batch of 1 takes the part of the paper's batch that was measured at the knee, or else `BATCH_ONE_PART` of it;
    linear between. Where the paper names no batch, the batch is 1.

    Raises
    ------
    InvalidRequest
        If it is not in the paper's table.
    """
    found = model(kind, name)
    if found.batch is None or found.batch == 1:
        return FlatKneeSurface(found.knee_units, ((1, found.runtime_ns),))
    part = BATCH_ONE_PART
    if found.framework is not None:
        known = surface(kind, name)
        part = known.latency_ns(found.knee_units, 1) / known.latency_ns(found.knee_units, found.batch)
    one = (1, round(found.runtime_ns * part))
    return FlatKneeSurface(found.knee_units, (one, (found.batch, found.runtime_ns)))


@cache
def scaled_flat_knee(kind: str, name: str, source: str = "v100") -> FlatKneeSurface:
    """The paper's assumption carried to a kind of device for which the paper has no table.

    The knee is the same number of compute units, which may be more than the other device has: it is then slower in
    proportion.

    Parameters
    ----------
    kind, name : str
    source : str
        Kind of device in the paper's table.

    Raises
    ------
    InvalidRequest
        If the model is not in the paper's table, or a kind of device is in no table.
    """
    known = flat_knee(source, name)
    units_ratio, unit_speed = _compare(kind, source)
    times = tuple((batch, max(1, round(time / unit_speed))) for batch, time in known.runtimes_ns)
    return FlatKneeSurface(max(1, round(known.knee_units / units_ratio)), times)


def _compare(kind: str, source: str) -> tuple[float, float]:
    """Compute units of a kind of device over those of another, and how many times faster one of them is."""
    known, other = device(source), device(kind)
    return other.compute_units / known.compute_units, other.unit_speed / known.unit_speed


def _column(times_ns: Mapping[int, int], units: list[int]) -> list[int]:
    """Times of one batch at these shares, ascending; never rising."""
    known = TableSurface(
        tuple(sorted(times_ns)), (1,), tuple((times_ns[share],) for share in sorted(times_ns))
    )
    return list(accumulate((known.latency_ns(share, 1) for share in units), min))


@cache
def _measurements(kind: str) -> Mapping[tuple[str, str], tuple[Measurement, ...]]:
    """Measured points by model and framework; a log that names no framework stands for itself."""
    path = files("polymux.perfmodel").joinpath("data", f"latency_{kind}.csv")
    if not path.is_file():
        return {}
    points: dict[tuple[str, str], list[Measurement]] = {}
    for row in csv.DictReader(path.read_text("utf-8").splitlines()):
        framework = row["source"] if row["framework"] == "unknown" else row["framework"]
        point = Measurement(
            int(row["gpu_pct"]), int(row["batch"]), _ns(row["median_ms"]), _ns(row["p99_ms"]), int(row["n"])
        )
        points.setdefault((row["model"], framework), []).append(point)
    return {key: tuple(found) for key, found in points.items()}


@cache
def _toml(name: str) -> dict[str, dict[str, Any]]:
    text = files("polymux.perfmodel").joinpath("data", name).read_text("utf-8")
    return tomllib.loads(text)


def _ns(milliseconds: str | float) -> int:
    return round(float(milliseconds) * 1e6)
