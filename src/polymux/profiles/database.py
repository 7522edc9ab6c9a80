"""The SQLite file: making it, opening it, and telling what is wrong with it."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from polymux.core.errors import ConfigError

APPLICATION_ID = 0x504D5850  # "PMXP"
VERSION = 2
_KEY = "profile store"
TABLES = ("model", "device", "grid", "point", "cost", "roof", "beside", "coexec")

SCHEMA = """
CREATE TABLE model (
    key TEXT PRIMARY KEY, name TEXT NOT NULL, path TEXT NOT NULL, batching TEXT NOT NULL,
    weight_nbytes INTEGER NOT NULL, inputs TEXT NOT NULL, digest TEXT NOT NULL
) STRICT;
CREATE TABLE device (key TEXT PRIMARY KEY, identity TEXT NOT NULL, digest TEXT NOT NULL) STRICT;
CREATE TABLE grid (
    model TEXT NOT NULL REFERENCES model(key) ON DELETE CASCADE,
    device TEXT NOT NULL REFERENCES device(key) ON DELETE CASCADE,
    units TEXT NOT NULL, batches TEXT NOT NULL, digest TEXT NOT NULL, PRIMARY KEY (model, device)
) STRICT;
CREATE TABLE point (
    model TEXT NOT NULL REFERENCES model(key) ON DELETE CASCADE,
    device TEXT NOT NULL REFERENCES device(key) ON DELETE CASCADE,
    units INTEGER NOT NULL, batch INTEGER NOT NULL, repeats INTEGER NOT NULL, median_ns INTEGER NOT NULL,
    mean_ns INTEGER NOT NULL, p95_ns INTEGER NOT NULL, min_ns INTEGER NOT NULL, half_width_ns INTEGER NOT NULL,
    confidence REAL NOT NULL, measured_at INTEGER NOT NULL, digest TEXT NOT NULL,
    PRIMARY KEY (model, device, units, batch)
) STRICT;
CREATE TABLE cost (
    model TEXT NOT NULL REFERENCES model(key) ON DELETE CASCADE, number INTEGER NOT NULL, op TEXT NOT NULL,
    flops REAL NOT NULL, more_flops REAL NOT NULL, nbytes REAL NOT NULL, more_nbytes REAL NOT NULL,
    weight_nbytes REAL NOT NULL, is_known INTEGER NOT NULL, digest TEXT NOT NULL, PRIMARY KEY (model, number)
) STRICT;
CREATE TABLE roof (
    device TEXT NOT NULL REFERENCES device(key) ON DELETE CASCADE, units INTEGER NOT NULL,
    flops_per_s REAL NOT NULL, bandwidth_bytes_per_s REAL NOT NULL, digest TEXT NOT NULL,
    PRIMARY KEY (device, units)
) STRICT;
CREATE TABLE beside (
    device TEXT NOT NULL REFERENCES device(key) ON DELETE CASCADE,
    model TEXT NOT NULL REFERENCES model(key) ON DELETE CASCADE,
    neighbour TEXT NOT NULL REFERENCES model(key) ON DELETE CASCADE,
    units INTEGER NOT NULL, batch INTEGER NOT NULL, neighbour_units INTEGER NOT NULL,
    neighbour_batch INTEGER NOT NULL, alone_ns INTEGER NOT NULL, beside_ns INTEGER NOT NULL,
    measured_at INTEGER NOT NULL, digest TEXT NOT NULL, PRIMARY KEY (device, model, neighbour)
) STRICT;
"""


ADDED = """CREATE TABLE IF NOT EXISTS coexec (
    device TEXT NOT NULL REFERENCES device(key) ON DELETE CASCADE, units INTEGER NOT NULL, kernel TEXT NOT NULL,
    dtype TEXT NOT NULL, record TEXT NOT NULL, digest TEXT NOT NULL, PRIMARY KEY (device, units, kernel, dtype)
) STRICT"""
"""A table that files of this version may lack; it is made when such a file is opened for writing."""
_REMEDY = "move the file away and profile again with 'polymux profile', or name another with --store"


def open_database(path: Path, write: bool, timeout_s: float) -> sqlite3.Connection:
    """Open the file and check it; make it when it is to be written and not there.

    Raises
    ------
    ConfigError
        If it is absent, locked, damaged, or no profile store of this version.
    """
    if write:
        with errors_told(path):
            path.parent.mkdir(parents=True, exist_ok=True)
    elif not path.is_file():
        what = "is no file" if path.exists() else "does not exist"
        raise ConfigError(str(path), _KEY, what, "profile a model first: polymux profile MODEL")
    with errors_told(path):
        mode = "rwc" if write else "ro"
        connection = sqlite3.connect(
            f"{path.resolve().as_uri()}?mode={mode}", timeout_s, uri=True, check_same_thread=False
        )
    try:
        with errors_told(path):
            connection.isolation_level = None
            connection.execute("PRAGMA foreign_keys = ON")
            if write:
                _make(connection)
            _check(path, connection)
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def errors_told(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into ones that name the file and the remedy.

    Raises
    ------
    ConfigError
    """
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            remedy = "wait until the process that writes it (polymux profile?) has ended, and try again"
            raise ConfigError(str(path), _KEY, "is locked by another process", remedy) from error
        if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
            remedy = "give a file that this user may read and write, with --store"
            raise ConfigError(str(path), _KEY, str(error), remedy) from error
        if code == sqlite3.SQLITE_FULL:
            raise ConfigError(str(path), _KEY, str(error), "make room on the disk") from error
        raise ConfigError(str(path), _KEY, f"is damaged: {error}", _REMEDY) from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(str(path), _KEY, reason, "name another file with --store") from error


@contextmanager
def transaction(path: Path, connection: sqlite3.Connection) -> Iterator[None]:
    """Write all of what the body does, or nothing.

    Raises
    ------
    ConfigError
    """
    with errors_told(path):
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")


def digest(values: Sequence[object]) -> str:
    """Sum over a row's values: what a flipped bit on the disk would otherwise turn into a wrong plan."""
    plain = [
        float(value) if isinstance(value, int) else value for value in values
    ]  # as REAL columns return it
    return hashlib.sha256(repr(plain).encode()).hexdigest()[:16]


def checked(path: Path, table: str, row: Sequence[object]) -> Sequence[object]:
    """Return a row without its digest, which is the last value.

    Raises
    ------
    ConfigError
        If they do not agree.
    """
    *values, expected = row
    if digest(values) != expected:
        raise damaged(path, f"a row of table {table} was changed: {tuple(values)}")
    return values


def damaged(path: Path, what: str) -> ConfigError:
    """Make the error for content that cannot be."""
    return ConfigError(str(path), _KEY, f"is damaged: {what}", _REMEDY)


def _make(connection: sqlite3.Connection) -> None:
    """Make the tables in a file that is new."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        empty = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0] == 0
        if empty and connection.execute("PRAGMA application_id").fetchone()[0] == 0:
            for statement in SCHEMA.split(";\n"):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {VERSION}")
        if connection.execute("PRAGMA user_version").fetchone()[0] == VERSION:
            connection.execute(ADDED)
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _check(path: Path, connection: sqlite3.Connection) -> None:
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    if application != APPLICATION_ID:
        remedy = "name the store that 'polymux profile' has written, or a new file"
        raise ConfigError(str(path), _KEY, "is a database of another program", remedy)
    found = connection.execute("PRAGMA user_version").fetchone()[0]
    if found != VERSION:
        remedy = f"this Polymux reads version {VERSION}; use the one that wrote it, or a new file"
        raise ConfigError(str(path), _KEY, f"has version {found}", remedy)
    problems = [str(row[0]) for row in connection.execute("PRAGMA integrity_check(1)")]
    if problems != ["ok"]:
        raise damaged(path, problems[0].replace("\n", " "))


def has_table(connection: sqlite3.Connection, table: str) -> bool:
    """Tell whether the file has a table; it may lack that of `ADDED` when it is only read."""
    found = connection.execute("SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?", (table,))
    return found.fetchone() is not None
