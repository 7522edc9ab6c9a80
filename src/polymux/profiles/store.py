"""Reads and writes profiles."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from polymux.core.errors import ConfigError, InvalidRequest
from polymux.perfmodel.interference import NO_INTERFERENCE, CoLocation, Interference, fit_interference
from polymux.perfmodel.measurement import Measurement
from polymux.perfmodel.surface import TableSurface
from polymux.perfmodel.surface_fit import fit_surface
from polymux.profiles.coexec import CoexecUnit
from polymux.profiles.database import (
    TABLES,
    checked,
    damaged,
    digest,
    errors_told,
    has_table,
    open_database,
    transaction,
)
from polymux.profiles.identity import DeviceIdentity
from polymux.profiles.records import Beside, Grid, NodeCost, Point, ProfiledModel, Roof

Statistic = Literal["median", "mean", "p95"]
_Record = TypeVar("_Record", ProfiledModel, Point, NodeCost, Roof, Beside)


class ProfileStore:
    """Profiles of models on devices, in one SQLite file.

    Parameters
    ----------
    path : str or Path
    write : bool
        Whether it is to be written; it is made then when it is not there.
    timeout_s : float
        How long to wait for another process that writes, in s.

    Raises
    ------
    ConfigError
        If the file is absent (when only read), locked, damaged, or no profile store.

    Notes
    -----
    One thread at a time. Each write is whole or not there, so a profile that was interrupted can be resumed; every
    row carries a digest, so damage gives an error and never other times.
    """

    def __init__(self, path: str | Path, *, write: bool = False, timeout_s: float = 5.0) -> None:
        self.path = Path(path)
        self._connection = open_database(self.path, write, timeout_s)
        try:
            for table in TABLES:  # a damaged key would make its row one that nobody asks for
                self._rows(table, "")
        except BaseException:
            self._connection.close()
            raise

    # What is there

    def models(self) -> list[ProfiledModel]:
        """List the models, by their names."""
        rows = self._rows("model", "")
        return sorted((self._made(ProfiledModel, row) for row in rows), key=lambda model: model.name)

    def devices(self) -> dict[str, DeviceIdentity]:
        """List the devices by their keys."""
        found = {}
        for key, text in self._rows("device", ""):
            try:
                identity = DeviceIdentity.from_json(text)
            except (ValueError, TypeError) as error:
                raise damaged(self.path, f"the device {key}: {error}") from error
            if identity.key != key:
                raise damaged(self.path, f"the device {key} describes another one")
            found[key] = identity
        return found

    def find_model(self, name: str) -> ProfiledModel:
        """Find a model by its name, its key, or the beginning of its key.

        Raises
        ------
        ConfigError
            If there is none, or more than one.
        """
        models = self.models()
        digits = name.removeprefix("sha256:")
        found = [model for model in models if model.name == name or model.key == name] or [
            model for model in models if len(digits) >= 4 and model.key.startswith(f"sha256:{digits}")
        ]
        if len(found) == 1:
            return found[0]
        if found:
            keys = ", ".join(model.key[:19] for model in found)
            raise ConfigError(
                str(self.path), "model", name, f"there are several; say which by its key: {keys}"
            )
        there = ", ".join(model.name for model in models) or "none"
        remedy = f"profile it with 'polymux profile'; profiled are: {there}"
        raise ConfigError(str(self.path), "model", name, remedy)

    def profiles(self) -> list[tuple[str, str]]:
        """List (model key, device key) of every profile, finished or not."""
        return [(row[0], row[1]) for row in self._rows("grid", "")]

    def grid(self, model_key: str, device_key: str) -> Grid | None:
        """Which points make this profile whole; None when it was never begun."""
        rows = self._rows("grid", "WHERE model = ? AND device = ?", (model_key, device_key))
        for _, _, units, batches in rows:
            try:
                return Grid(tuple(json.loads(units)), tuple(json.loads(batches)))
            except (ValueError, TypeError) as error:
                raise damaged(self.path, f"a grid: {error}") from error
        return None

    def points(self, model_key: str, device_key: str) -> list[Point]:
        """Everything that was measured of a model on a device, also outside its present grid."""
        where = "WHERE model = ? AND device = ? ORDER BY units, batch"
        rows = self._rows("point", where, (model_key, device_key))
        return [self._made(Point, row[2:]) for row in rows]

    def missing(self, model_key: str, device_key: str) -> list[tuple[int, int]]:
        """Places (units, batch) of the grid that were not measured yet."""
        grid = self.grid(model_key, device_key)
        done = {(point.units, point.batch) for point in self.points(model_key, device_key)}
        return [] if grid is None else [place for place in grid.places if place not in done]

    def costs(self, model_key: str) -> list[NodeCost]:
        """What the nodes of a model take, in their order."""
        rows = self._rows("cost", "WHERE model = ? ORDER BY number", (model_key,))
        return [self._made(NodeCost, (*row[2:-1], bool(row[-1]))) for row in rows]

    def roofs(self, device_key: str) -> dict[int, Roof]:
        """What the shares of a device can do at most, by their units."""
        rows = self._rows("roof", "WHERE device = ?", (device_key,))
        return {row[1]: self._made(Roof, row[1:]) for row in rows}

    def besides(self, device_key: str) -> list[Beside]:
        """What was measured of models beside each other on a device."""
        rows = self._rows("beside", "WHERE device = ? ORDER BY model, neighbour", (device_key,))
        return [self._made(Beside, row[1:]) for row in rows]

    def coexec(self, device_key: str) -> list[CoexecUnit]:
        """Shares and kernels of a device that were calibrated for co-execution; see `coexec_device_key`."""
        found = []
        for _, units, kernel, dtype, text in self._rows(
            "coexec", "WHERE device = ? ORDER BY units, kernel, dtype", (device_key,)
        ):
            try:
                found.append(CoexecUnit.from_json(units, kernel, dtype, text))
            except (ValueError, KeyError, TypeError, AttributeError, InvalidRequest) as error:
                raise damaged(self.path, f"the calibration of {kernel}: {error}") from error
        return found

    # What follows

    def interference(self, device_key: str, names: Mapping[str, str] | None = None) -> Interference:
        """How much models disturb each other on a device, fitted to what was measured; none where nothing was.

        Parameters
        ----------
        device_key : str
        names : mapping of str to str, optional
            What the models are called in the result, by their keys; without, as in the store. Others are left out.
        """
        device = self.devices().get(device_key)
        called = {model.key: model.name for model in self.models()} if names is None else names
        pairs = [its for its in self.besides(device_key) if its.model in called and its.neighbour in called]
        if device is None or not pairs:
            return NO_INTERFERENCE
        return fit_interference(
            [
                CoLocation(
                    called[its.model],
                    ((called[its.neighbour], its.neighbour_units / device.units),),
                    its.slowdown,
                )
                for its in pairs
            ]
        )

    def surface(
        self, model_key: str, device_key: str, statistic: Statistic = "median", limit: int = 0
    ) -> TableSurface | None:
        """Latency surface of a model on a kind of device; None without a finished profile of just these.

        Parameters
        ----------
        model_key, device_key : str
        statistic : {"median", "mean", "p95"}
            Which of the measured times.
        limit : int
            Largest batch that the model is given where it is used, when that is less than what was measured; 0: all.

        Notes
        -----
        Noise is taken out where it contradicts what must be: a larger batch takes no less time, a larger share no
        more. See `polymux.perfmodel.surface_fit`.
        """
        grid = self.grid(model_key, device_key)
        if grid is None:
            return None
        times = {
            (point.units, point.batch): int(getattr(point, f"{statistic}_ns"))
            for point in self.points(model_key, device_key)
        }
        if any(place not in times for place in grid.places):
            return None
        points = [Measurement(*place, times[place]) for place in grid.places]
        most = min(limit or grid.batches[-1], grid.batches[-1])
        return fit_surface(points, grid.units, grid.batches, most).surface

    def require_surface(
        self, model: ProfiledModel, device: DeviceIdentity, statistic: Statistic = "median"
    ) -> TableSurface:
        """Return a surface, or say why there is none for just this device.

        Raises
        ------
        ConfigError
            With what differs, where the model was profiled on another device, or with what is missing.
        """
        found = self.surface(model.key, device.key, statistic)
        if found is not None:
            return found
        missing = self.missing(model.key, device.key)
        if missing:
            value = f"{len(missing)} points of its profile are missing"
            raise ConfigError(str(self.path), model.name, value, "run 'polymux profile' again; it resumes")
        others = [its for key, its in self.devices().items() if (model.key, key) in self.profiles()]
        if others:
            nearest = min(others, key=lambda its: len(device.differences(its)))
            value = f"profiled on another device ({'; '.join(device.differences(nearest))})"
            raise ConfigError(str(self.path), model.name, value, "profile it on this one: polymux profile")
        raise ConfigError(str(self.path), model.name, "not profiled", "run 'polymux profile' first")

    # Writing

    def put_model(self, model: ProfiledModel) -> None:
        """Add a model, or what is known of it."""
        self._put("model", astuple(model))

    def put_device(self, device: DeviceIdentity) -> None:
        """Add a device."""
        self._put("device", (device.key, device.to_json()))

    def put_grid(self, model_key: str, device_key: str, grid: Grid) -> None:
        """Say which points the profile is to have; measured ones stay."""
        self._put(
            "grid", (model_key, device_key, json.dumps(list(grid.units)), json.dumps(list(grid.batches)))
        )

    def put_point(self, model_key: str, device_key: str, point: Point) -> None:
        """Add a measured point, in place of an earlier one."""
        self._put("point", (model_key, device_key, *astuple(point)))

    def put_costs(self, model_key: str, costs: Sequence[NodeCost]) -> None:
        """Say what the nodes of a model take, in place of what was there."""
        rows = [(model_key, number, *astuple(cost)) for number, cost in enumerate(costs)]
        rows = [(*row[:-1], int(row[-1])) for row in rows]
        with transaction(self.path, self._connection):
            self._connection.execute("DELETE FROM cost WHERE model = ?", (model_key,))
            self._connection.executemany(
                "INSERT INTO cost VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [(*row, digest(row)) for row in rows],
            )

    def put_roof(self, device_key: str, roof: Roof) -> None:
        """Say what a share of a device can do at most."""
        self._put("roof", (device_key, *astuple(roof)))

    def put_beside(self, device_key: str, beside: Beside) -> None:
        """Add a measured pair, in place of an earlier one."""
        self._put("beside", (device_key, *astuple(beside)))

    def put_coexec(self, device_key: str, unit: CoexecUnit) -> None:
        """Add a calibration, in place of an earlier one of the same units, kernel and dtype."""
        self._put("coexec", (device_key, *unit.key, unit.to_json()))

    def forget(self, model_key: str, device_key: str | None = None) -> None:
        """Remove a model's profile on one device, or the model with all its profiles."""
        with transaction(self.path, self._connection):
            if device_key is None:
                self._connection.execute("DELETE FROM model WHERE key = ?", (model_key,))
                return
            for table in ("point", "grid"):
                self._connection.execute(
                    f"DELETE FROM {table} WHERE model = ? AND device = ?", (model_key, device_key)
                )

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _rows(self, table: str, where: str, arguments: Sequence[object] = ()) -> list[Sequence[Any]]:
        with errors_told(self.path):
            if table == "coexec" and not has_table(self._connection, table):
                return []
            rows = self._connection.execute(f"SELECT * FROM {table} {where}", arguments).fetchall()
        return [checked(self.path, table, row) for row in rows]

    def _put(self, table: str, values: Sequence[object]) -> None:
        names = [row[1] for row in self._connection.execute(f"PRAGMA table_info({table})")]
        keys = [row[1] for row in self._connection.execute(f"PRAGMA table_info({table})") if row[5]]
        marks = ", ".join("?" * len(names))
        updates = ", ".join(f"{name} = excluded.{name}" for name in names if name not in keys)
        statement = (
            f"INSERT INTO {table} VALUES ({marks}) ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {updates}"
        )
        with transaction(self.path, self._connection):
            self._connection.execute(statement, (*values, digest(values)))

    def _made(self, kind: type[_Record], values: Sequence[Any]) -> _Record:
        try:
            return kind(*values)
        except (InvalidRequest, TypeError) as error:
            raise damaged(self.path, str(error)) from error
