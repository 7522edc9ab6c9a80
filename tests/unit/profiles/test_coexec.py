"""Calibrations in the profile store: kept by share, kernel and dtype, and worth nothing when a library has changed."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from polymux.core.errors import ConfigError, InvalidRequest
from polymux.perfmodel.coexec.compute import constant_rate
from polymux.perfmodel.coexec.link import LinkModel
from polymux.profiles import CoexecUnit, ProfileStore, coexec, coexec_device_key, coexec_identity
from polymux.profiles.database import open_database

DEVICE: dict[str, Any] = {
    "api": "cpu",
    "name": "Some Processor",
    "units": 4,
    "memory": "host",
    "details": "cores 0-3",
}
LINK = LinkModel("opencl:0", 1e-5, 1e10, 2e-5, 9e9)
UNIT = CoexecUnit(
    "coexec_gemm",
    2,
    "f4",
    {"method": 11, "tile": 3},
    "fp32",
    "numpy 2",
    constant_rate(1e11, 1e-5),
    LINK,
    8,
    32,
    5,
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ProfileStore]:
    with ProfileStore(tmp_path / "profiles.db", write=True) as opened:
        opened.put_device(coexec_identity(DEVICE))
        yield opened


def test_what_was_calibrated_is_there_after_opening_the_file_again(store: ProfileStore) -> None:
    key = coexec_device_key(DEVICE)
    units = [
        replace(UNIT, units=1, link=None),
        UNIT,
        replace(UNIT, kernel="coexec_gemm_bf16", notes=("busy",)),
    ]
    for unit in reversed(units):
        store.put_coexec(key, unit)
    store.close()
    with ProfileStore(store.path) as reopened:
        assert reopened.coexec(key) == units
        assert reopened.coexec("cpu-other") == []


def test_a_calibration_replaces_the_one_of_the_same_share_kernel_and_dtype(store: ProfileStore) -> None:
    key = coexec_device_key(DEVICE)
    store.put_coexec(key, UNIT)
    store.put_coexec(key, replace(UNIT, scalars={"method": 1}))
    store.put_coexec(key, replace(UNIT, dtype="f8"))
    assert [(unit.dtype, unit.scalars["method"]) for unit in store.coexec(key)] == [("f4", 1), ("f8", 11)]


def test_the_key_changes_with_libraries_and_device_but_not_with_its_other_units(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key = coexec_device_key(DEVICE)
    assert coexec_device_key(DEVICE | {"units": 1, "details": "core 3"}) == key
    assert coexec_device_key(DEVICE | {"memory": "own"}) != key
    assert coexec_device_key(DEVICE | {"name": "Other Processor"}) != key
    monkeypatch.setattr(coexec, "package_version", lambda name: "9.9")
    assert coexec_device_key(DEVICE) != key


def test_a_store_from_before_calibrations_is_read_and_gets_them_when_it_is_written(
    store: ProfileStore,
) -> None:
    store.close()
    with sqlite3.connect(store.path) as connection:
        connection.execute("DROP TABLE coexec")
    connection.close()
    key = coexec_device_key(DEVICE)
    with ProfileStore(store.path) as old:
        assert old.coexec(key) == []
        assert key in old.devices()
    with ProfileStore(store.path, write=True) as old:
        old.put_coexec(key, UNIT)
        assert old.coexec(key) == [UNIT]


@pytest.mark.parametrize("text", ["{", "{}", "[]", '{"scalars": 5}'])
def test_a_calibration_that_cannot_be_read_is_damage(store: ProfileStore, text: str) -> None:
    key = coexec_device_key(DEVICE)
    store.put_coexec(key, UNIT)
    from polymux.profiles.database import digest

    values = (key, 2, "coexec_gemm", "f4", text)
    connection = open_database(store.path, True, 5)
    connection.execute("UPDATE coexec SET record = ?, digest = ?", (text, digest(values)))
    connection.close()
    with pytest.raises(ConfigError, match="the calibration of coexec_gemm"):
        store.coexec(key)


def test_a_unit_without_units_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="1 or more"):
        replace(UNIT, units=0)
