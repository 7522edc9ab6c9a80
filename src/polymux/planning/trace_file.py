"""Traces of arrivals in files: a column of counts per bin of time, or of timestamps, as CSV or Parquet."""

from __future__ import annotations

import csv
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
        columns = _read_parquet(path, name) if path.suffix == ".parquet" else _read_csv(path)
    except OSError as error:
        remedy = f"cannot be read: {error.strerror or error}; give the path of a CSV or Parquet file"
        raise table.error("file", str(path), remedy) from error
    except ModuleNotFoundError as error:
        remedy = f"Parquet needs the package {error.name}: pip install 'polymux[plan]'; or give CSV"
        raise table.error("file", str(path), remedy) from error
    except (ValueError, csv.Error) as error:
        raise table.error("file", str(path), f"is no CSV or Parquet: {error}") from error
    if name not in columns:
        remedy = f"{path} has no such column; it has {', '.join(columns) or 'none'}"
        raise table.error(key, name, remedy)
    try:
        return np.asarray(columns[name], np.float64)
    except (ValueError, TypeError) as error:
        raise table.error(key, name, f"{path}: {error}; give numbers only") from error


def _read_csv(path: Path) -> dict[str, Any]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file, skipinitialspace=True)
        names = [name for name in reader.fieldnames or [] if name]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"several columns are named {twice[0]!r}")
        columns: dict[str, list[Any]] = {name: [] for name in names}
        for row in reader:
            for name in names:
                columns[name].append(row[name] if row[name] is not None else "nan")
    return columns


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
