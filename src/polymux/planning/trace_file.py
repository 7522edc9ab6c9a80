"""Traces of arrivals in files: a column of counts per bin of time, or of timestamps, as CSV or Parquet."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polymux.core.errors import InvalidRequest
from polymux.core.toml_table import TomlTable
from polymux.sim.serving.arrivals import SECOND_NS, Arrivals, Counts, Timestamps

_MOST = 200_000_000
"""Requests of a trace."""
_LATEST_NS = 9e18
"""What 64 bits hold."""


def read_trace(table: TomlTable, folder: Path) -> Arrivals:
    """Read the trace that ``arrivals`` name.

    Parameters
    ----------
    table : TomlTable
        ``file``, and either ``counts`` (a column's name) with ``bin_s`` (1), or ``timestamps`` with ``unit_s`` (1).
        Timestamps need no order; the earliest becomes time 0.
    folder : Path
        What the file's name is relative to.

    Raises
    ------
    ConfigError
        If the file cannot be read, has no such column, or the column is empty or holds what cannot be.
    """
    path = folder / table.text("file")
    if ("counts" in table) == ("timestamps" in table):
        raise table.error("file", str(path), 'name its column: counts = "..." or timestamps = "..."')
    key = "counts" if "counts" in table else "timestamps"
    name = table.text(key)
    values = _column(table, path, key, name)
    if not values.size:
        raise table.error(
            "file", str(path), f"the trace is empty: column {name!r} has no values; give at least one"
        )
    wrong = values[~np.isfinite(values)]
    if wrong.size:
        raise table.error(key, name, f"{path}: the column holds {wrong[0]}; give numbers only")
    try:
        if key == "counts":
            return _counts(table, path, values)
        unit_s = table.amount("unit_s", 1.0, low=1e-9, high=86_400.0)
        times = np.sort((values - values.min()) * (unit_s * SECOND_NS))
        if times[-1] > _LATEST_NS:
            late_s = times[-1] / SECOND_NS
            remedy = (
                f"{path}: the last timestamp is {late_s:g} s after the first; give the unit of its numbers"
            )
            raise table.error("unit_s", unit_s, remedy)
        return Timestamps(np.round(times).astype(np.int64))
    except InvalidRequest as error:
        raise table.error("file", str(path), str(error)) from error


def _counts(table: TomlTable, path: Path, values: NDArray[np.float64]) -> Arrivals:
    wrong = values[(values < 0) | (values != np.round(values))]
    if wrong.size:
        raise table.error(
            "counts", table.text("counts"), f"{path}: {wrong[0]:g} is not a whole number of 0 or more"
        )
    if not values.any():
        remedy = "the trace is empty: it has no request in any of its bins; give at least one"
        raise table.error("file", str(path), remedy)
    if values.sum() > _MOST:
        raise table.error("file", str(path), f"it has {values.sum():g} requests; give at most {_MOST:,}")
    bin_ns = round(table.amount("bin_s", 1.0, low=1e-3, high=86_400.0) * SECOND_NS)
    return Counts(tuple(int(value) for value in values), bin_ns)


def _column(table: TomlTable, path: Path, key: str, name: str) -> NDArray[np.float64]:
    """Read a column as numbers."""
    try:
        if path.suffix != ".parquet":
            return _read_csv(table, path, key, name)
        columns = _read_parquet(path, name)
    except OSError as error:
        remedy = f"cannot be read: {error.strerror or error}; give the path of a CSV or Parquet file"
        raise table.error("file", str(path), remedy) from error
    except ModuleNotFoundError as error:
        remedy = f"Parquet needs the package {error.name}: pip install 'polymux[plan]'; or give CSV"
        raise table.error("file", str(path), remedy) from error
    except (ValueError, csv.Error) as error:
        raise table.error("file", str(path), f"is no CSV or Parquet: {error}") from error
    _check_name(table, path, key, name, list(columns))
    try:
        return np.asarray(columns[name], np.float64)
    except (ValueError, TypeError) as error:
        raise table.error(key, name, f"{path}: {error}; give numbers only") from error


def _check_name(table: TomlTable, path: Path, key: str, name: str, names: Sequence[str]) -> None:
    if names.count(name) > 1:
        remedy = f"{path}: several columns are named {name!r}; name each differently"
        raise table.error(key, name, remedy)
    if name not in names:
        remedy = f"{path} has no such column; it has {', '.join(filter(None, names)) or 'none'}"
        raise table.error(key, name, remedy)


def _read_csv(table: TomlTable, path: Path, key: str, name: str) -> NDArray[np.float64]:
    """Read a column; whatever is wrong in a line is told with its number. Empty lines are none at the end only."""
    values: list[float] = []
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file, skipinitialspace=True, strict=True)
        names = [each.strip() for each in next(reader, [])]
        _check_name(table, path, key, name, names)
        at, empty = names.index(name), 0
        for row in reader:
            if not row or row == [""]:
                empty = empty or reader.line_num
                continue
            where = f"{path}: line {reader.line_num}"
            if empty:
                remedy = f"{path}: line {empty} is empty; remove it or give a value"
                raise table.error("file", str(path), remedy)
            if len(row) != len(names):
                remedy = (
                    f"{where} has {len(row)} values, {', '.join(row)!r}; give {len(names)}, as its first line"
                )
                raise table.error("file", str(path), remedy)
            try:
                value = float(row[at])
            except ValueError:
                value = math.nan
            if not math.isfinite(value):
                raise table.error(key, name, f"{where} holds {row[at]!r}; give numbers only")
            values.append(value)
    return np.asarray(values, np.float64)


def _read_parquet(path: Path, name: str) -> dict[str, Any]:
    from pyarrow import parquet  # only who has Parquet files needs it

    with path.open("rb") as file:
        found = parquet.ParquetFile(file)
        columns: dict[str, Any] = dict.fromkeys(found.schema_arrow.names)
        if name in columns:
            column = found.read(columns=[name]).column(0)
            values = column.to_numpy()
            if np.issubdtype(values.dtype, np.datetime64):
                is_missing = np.isnat(values)
                values = values.astype("datetime64[ns]").astype(np.int64) / SECOND_NS
                values[is_missing] = np.nan
            columns[name] = values
    return columns
