"""What a profile says: its table, knees, optimum and bound, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from polymux.perfmodel.efficacy import Optimum, efficacy, find_optimum, throughput_per_s, why_none
from polymux.perfmodel.knee import KNEES
from polymux.perfmodel.measurement import Measurement
from polymux.perfmodel.roofline import Roofline
from polymux.perfmodel.surface import TableSurface
from polymux.perfmodel.surface_fit import fit_surface
from polymux.profiles import DeviceIdentity, Grid, Point, ProfiledModel, ProfileStore


@dataclass(frozen=True, slots=True)
class Demand:
    """What is asked of a model.

    Parameters
    ----------
    slo_ns : int
        Time within which a request is to be answered.
    rate_per_s : float
        Requests per second.
    """

    slo_ns: int
    rate_per_s: float


@dataclass(frozen=True, slots=True)
class Bound:
    """What bounds a batch on a share, by the roofline.

    Parameters
    ----------
    by : {"memory", "compute"}
        What most of the least possible time is spent on.
    intensity : float
        Operations per byte of the whole graph.
    ridge : float
        Of the share, operations per byte.
    memory_part : float
        Part of the least possible time in nodes that the memory bounds.
    least_ns : float
        The least possible time.
    of_least : float
        Measured time over the least possible one.
    """

    by: str
    intensity: float
    ridge: float
    memory_part: float
    least_ns: float
    of_least: float


@dataclass(frozen=True, slots=True)
class Summary:
    """A profile and what follows from it.

    Parameters
    ----------
    model : ProfiledModel
    device : DeviceIdentity
    grid : Grid
    points : mapping of (int, int) to Point
        By units and batch.
    surface : TableSurface or None
        None: the profile is not finished.
    median_error : float or None
        Of predicting a point from all others, relative; None with fewer than three points.
    knees : mapping of str to mapping of int to int
        By definition and batch, in units.
    best : Optimum or None
        The place of the largest efficacy, whatever the demand.
    demand : Demand or None
    optimum : Optimum or None
        The best place that meets the demand.
    why_none : str
        Why no place meets the demand.
    bounds : mapping of (int, int) to Bound
        By units and batch; empty where the device's roof was not measured.
    """

    model: ProfiledModel
    device: DeviceIdentity
    grid: Grid
    points: Mapping[tuple[int, int], Point]
    surface: TableSurface | None
    median_error: float | None
    knees: Mapping[str, Mapping[int, int]]
    best: Optimum | None
    demand: Demand | None
    optimum: Optimum | None
    why_none: str
    bounds: Mapping[tuple[int, int], Bound]

    def efficacy(self, units: int, batch: int) -> float | None:
        """Efficacy at a place, in items / (s**2 * share); None without a finished profile."""
        return None if self.surface is None else efficacy(self.surface, units, batch, self.device.units)

    def to_json(self) -> dict[str, Any]:
        """Return everything as data."""
        demand = None if self.demand is None else asdict(self.demand)
        knees = {name: {str(at): units for at, units in found.items()} for name, found in self.knees.items()}
        return {
            "model": asdict(self.model),
            "device": {"key": self.device.key, "description": str(self.device), "units": self.device.units},
            "finished": self.surface is not None,
            "points": [
                asdict(point) | {"efficacy": self.efficacy(*place)} for place, point in self.points.items()
            ],
            "median_error": self.median_error,
            "knees": knees,
            "best": _place(self.best),
            "demand": demand,
            "optimum": _place(self.optimum),
            "why_none": self.why_none,
            "bounds": [
                {"units": units, "batch": batch, **asdict(bound)}
                for (units, batch), bound in self.bounds.items()
            ],
        }


def summarize(
    store: ProfileStore, model: ProfiledModel, device: DeviceIdentity, demand: Demand | None = None
) -> Summary | None:
    """Say what a profile says; None when there is none.

    Parameters
    ----------
    store : ProfileStore
    model : ProfiledModel
    device : DeviceIdentity
    demand : Demand, optional

    Raises
    ------
    ConfigError
        If the store is damaged or locked.
    """
    grid = store.grid(model.key, device.key)
    if grid is None:
        return None
    points = {(p.units, p.batch): p for p in store.points(model.key, device.key)}
    points = {place: points[place] for place in grid.places if place in points}
    surface = store.surface(model.key, device.key)
    knees, best, optimum, why, error = {}, None, None, "", None
    if surface is not None:
        fitted = fit_surface([Measurement(u, b, p.median_ns) for (u, b), p in points.items()])
        error = fitted.median_error
        knees = {
            name: {batch: find(surface, batch, grid.units) for batch in grid.batches}
            for name, find in KNEES.items()
        }
        best = max(
            (_optimum(surface, *place, device.units) for place in grid.places),
            key=lambda found: found.efficacy,
        )
        if demand is not None:
            asked = (surface, grid.units, demand.slo_ns, demand.rate_per_s)
            optimum, why = find_optimum(*asked, device_units=device.units), why_none(*asked)
    bounds = _bounds(store, model, device, points)
    return Summary(model, device, grid, points, surface, error, knees, best, demand, optimum, why, bounds)


def _optimum(surface: TableSurface, units: int, batch: int, device_units: int) -> Optimum:
    return Optimum(
        units,
        batch,
        surface.latency_ns(units, batch),
        0,
        throughput_per_s(surface, units, batch),
        efficacy(surface, units, batch, device_units),
    )


def _bounds(
    store: ProfileStore,
    model: ProfiledModel,
    device: DeviceIdentity,
    points: Mapping[tuple[int, int], Point],
) -> dict[tuple[int, int], Bound]:
    roofs, costs, found = store.roofs(device.key), store.costs(model.key), {}
    for (units, batch), point in points.items():
        if units not in roofs or not costs:
            continue
        roof = Roofline(roofs[units].flops_per_s, roofs[units].bandwidth_bytes_per_s)
        flops = nbytes = least = memory = 0.0
        for node in costs:
            its_flops = node.flops + (batch - 1) * node.more_flops
            its_nbytes = node.nbytes + (batch - 1) * node.more_nbytes
            its_least = roof.least_ns(its_flops, its_nbytes)
            flops, nbytes, least = flops + its_flops, nbytes + its_nbytes, least + its_least
            if its_nbytes and roof.bound(its_flops / its_nbytes) == "memory":
                memory += its_least
        if least > 0 and nbytes > 0:
            part = memory / least
            by = "memory" if part > 0.5 else "compute"
            found[units, batch] = Bound(by, flops / nbytes, roof.ridge, part, least, point.median_ns / least)
    return found


def _place(optimum: Optimum | None) -> dict[str, Any] | None:
    if optimum is None:
        return None
    return {
        "units": optimum.units,
        "batch": optimum.batch,
        "latency_ns": optimum.latency_ns,
        "throughput_per_s": optimum.throughput_per_s,
        "efficacy": optimum.efficacy,
    }
