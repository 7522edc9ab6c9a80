"""Reads the TOML file of ``polymux up --config``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from polymux.core.errors import ConfigError
from polymux.core.nbytes import parse_nbytes
from polymux.metrics.address import Address, parse_address
from polymux.policy import registry
from polymux.server.options import DEFAULT_JOBS, MAX_CLIENTS, KernelsFile, Limits, RuntimeOptions

_KEYS = ("socket", *(field.name for field in fields(RuntimeOptions)))
_LIMITS = tuple(field.name for field in fields(Limits))
MIN_SEGMENT_NBYTES = 32 << 20
MIN_WORKER_NBYTES = 512 << 20


@dataclass(frozen=True, slots=True)
class Config:
    """A configuration file's content: the socket's path, if it names one, and the runtime's options."""

    socket: Path | None
    runtime: RuntimeOptions


def read_config(path: Path) -> Config:
    """Read a configuration file; paths in it are relative to its folder.

    Raises
    ------
    ConfigError
        Names file, key, value and remedy.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), "--config", str(path), f"cannot be read: {error}") from None
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(str(path), "TOML", str(error), "correct the syntax") from None
    return _Reader(path).config(table)


class _Reader:
    def __init__(self, path: Path) -> None:
        self._file = str(path)
        self._folder = path.parent

    def config(self, table: Mapping[str, Any]) -> Config:
        self._refuse_unknown(table, _KEYS, "")
        options = RuntimeOptions(
            devices=self._texts(table, "devices"),
            policy=self._text(table, "policy", registry.DEFAULT),
            jobs=self._text(table, "jobs", DEFAULT_JOBS),
            kernels=self._kernels(table),
            allow_uids=self._uids(table),
            limits=self._limits(table.get("limits", {})),
            trace=self._path(table, "trace"),
            record=self._path(table, "record"),
            metrics=self._address(table, "metrics"),
        )
        return Config(self._path(table, "socket"), options)

    def _limits(self, table: Any) -> Limits:
        if not isinstance(table, dict):
            raise self._bad("limits", table, "write it as a table: [limits]")
        self._refuse_unknown(table, _LIMITS, "limits.")
        standard = Limits()
        most = self._nbytes(table, "max_segment_nbytes", standard.max_segment_nbytes)
        usual = self._nbytes(table, "segment_nbytes", min(standard.segment_nbytes, most))
        if usual > most:
            raise self._bad("limits.segment_nbytes", usual, f"give at most max_segment_nbytes, {most}")
        clients = table.get("max_clients", standard.max_clients)
        if not isinstance(clients, int) or isinstance(clients, bool) or not 1 <= clients <= MAX_CLIENTS:
            raise self._bad("limits.max_clients", clients, f"give a whole number from 1 to {MAX_CLIENTS}")
        worker = self._nbytes(table, "worker_nbytes", standard.worker_nbytes, MIN_WORKER_NBYTES)
        return Limits(usual, most, clients, worker)

    def _nbytes(
        self, table: Mapping[str, Any], key: str, standard: int, lowest: int = MIN_SEGMENT_NBYTES
    ) -> int:
        value = table.get(key, standard)
        try:
            nbytes = parse_nbytes(value) if isinstance(value, str) else value
        except ValueError:
            nbytes = None
        if not isinstance(nbytes, int) or isinstance(nbytes, bool) or nbytes < lowest:
            remedy = f'give {lowest} bytes or more, as a number or a text such as "2 GiB"'
            raise self._bad(f"limits.{key}", value, remedy)
        return nbytes

    def _kernels(self, table: Mapping[str, Any]) -> tuple[KernelsFile, ...]:
        value = table.get("kernels", [])
        remedy = 'give a list of files, for example ["a.py", { file = "b.toml", isolate = true }]'
        if not isinstance(value, list):
            raise self._bad("kernels", value, remedy)
        files = []
        for entry in value:
            fields = {"file": entry} if isinstance(entry, str) else entry
            if not isinstance(fields, dict) or not isinstance(fields.get("file"), str):
                raise self._bad("kernels", entry, remedy)
            self._refuse_unknown(fields, ("file", "isolate"), "kernels.")
            isolate = fields.get("isolate", False)
            if not isinstance(isolate, bool):
                raise self._bad("kernels.isolate", isolate, "give true or false")
            files.append(KernelsFile(self._folder / fields["file"], isolate))
        return tuple(files)

    def _uids(self, table: Mapping[str, Any]) -> tuple[int, ...]:
        value = table.get("allow_uids", [])
        if not isinstance(value, list) or not all(type(uid) is int and 0 <= uid < 2**32 for uid in value):
            raise self._bad("allow_uids", value, "give a list of user ids, for example [1000, 1001]")
        return tuple(value)

    def _texts(self, table: Mapping[str, Any], key: str) -> tuple[str, ...]:
        value = table.get(key, [])
        if not isinstance(value, list) or not all(isinstance(text, str) and text for text in value):
            raise self._bad(key, value, 'give a list of texts, for example ["cpu", "opencl:0"]')
        return tuple(value)

    def _text(self, table: Mapping[str, Any], key: str, standard: str) -> str:
        value = table.get(key, standard)
        if not isinstance(value, str) or not value:
            raise self._bad(key, value, "give a text")
        return value

    def _address(self, table: Mapping[str, Any], key: str) -> Address | None:
        value = table.get(key)
        if value is None:
            return None
        try:
            return parse_address(str(value) if type(value) is int else self._text(table, key, ""))
        except ValueError as error:
            raise self._bad(key, value, str(error)) from None

    def _path(self, table: Mapping[str, Any], key: str) -> Path | None:
        return self._folder / self._text(table, key, "") if key in table else None

    def _refuse_unknown(self, table: Mapping[str, Any], known: tuple[str, ...], prefix: str) -> None:
        for key, value in table.items():
            if key not in known:
                raise self._bad(f"{prefix}{key}", value, f"no such setting; known are {', '.join(known)}")

    def _bad(self, key: str, value: object, remedy: str) -> ConfigError:
        return ConfigError(self._file, key, value, remedy)
