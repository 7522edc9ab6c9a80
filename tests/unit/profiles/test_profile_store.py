"""The profile store: what it keeps, what it refuses, and that damage never becomes a plan."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from polymux.core.errors import ConfigError, InvalidRequest
from polymux.profiles import (
    DeviceIdentity,
    Grid,
    NodeCost,
    Point,
    ProfiledModel,
    ProfileStore,
    Roof,
    device_key,
    identify,
)
from polymux.profiles import identity as profiles_identity
from polymux.profiles.identity import model_key

MODEL = ProfiledModel(
    "sha256:" + "ab" * 32, "squeezenet", "/models/squeezenet.onnx", "dynamic", 5_000_000, "x=Nx3x8x8"
)
DEVICE = DeviceIdentity("cpu", "Some Processor", 2, "host", "model 1", {"onnxruntime": "1.20"})
GRID = Grid((1, 2), (1, 4))
COSTS = [NodeCost("Conv", 2e6, 2e6, 9e3, 5e3, 4e3, True), NodeCost("Odd", 1.0, 1.0, 8.0, 8.0, 0.0, False)]
ROOF = Roof(1, 5e10, 1e10)
TIMES = {(1, 1): 100, (2, 1): 60, (1, 4): 380, (2, 4): 200}


def point(units: int, batch: int, median_ns: int) -> Point:
    return Point(
        units, batch, 20, median_ns, median_ns + 2, median_ns + 9, median_ns - 5, 3, 0.95, 1_700_000_000
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "profiles.db"


@pytest.fixture
def store(path: Path) -> Iterator[ProfileStore]:
    with ProfileStore(path, write=True) as opened:
        yield opened


def fill(store: ProfileStore, times: dict[tuple[int, int], int] = TIMES) -> None:
    store.put_model(MODEL)
    store.put_device(DEVICE)
    store.put_grid(MODEL.key, DEVICE.key, GRID)
    store.put_costs(MODEL.key, COSTS)
    store.put_roof(DEVICE.key, ROOF)
    for (units, batch), median_ns in times.items():
        store.put_point(MODEL.key, DEVICE.key, point(units, batch, median_ns))


def test_what_is_written_is_there_after_opening_the_file_again(store: ProfileStore, path: Path) -> None:
    fill(store)
    store.close()
    with ProfileStore(path) as reopened:
        assert reopened.models() == [MODEL]
        assert reopened.devices() == {DEVICE.key: DEVICE}
        assert reopened.profiles() == [(MODEL.key, DEVICE.key)]
        assert reopened.grid(MODEL.key, DEVICE.key) == GRID
        assert reopened.points(MODEL.key, DEVICE.key) == [
            point(*place, TIMES[place]) for place in sorted(TIMES)
        ]
        assert reopened.costs(MODEL.key) == COSTS
        assert reopened.roofs(DEVICE.key) == {1: ROOF}
        small = reopened.surface(MODEL.key, DEVICE.key, limit=2)
        assert small is not None
        assert small.max_batch == 2
        surface = reopened.surface(MODEL.key, DEVICE.key)
        assert surface is not None
        assert surface.max_batch == 4
        assert {place: surface.latency_ns(*place) for place in TIMES} == TIMES
        slow = reopened.surface(MODEL.key, DEVICE.key, "p95")
        assert slow is not None
        assert slow.latency_ns(1, 4) == 389


def test_an_unfinished_profile_has_no_surface_and_says_what_is_missing(store: ProfileStore) -> None:
    fill(store, {(1, 1): 100, (2, 1): 60})
    assert store.surface(MODEL.key, DEVICE.key) is None
    assert store.missing(MODEL.key, DEVICE.key) == [(1, 4), (2, 4)]
    with pytest.raises(ConfigError, match="2 points of its profile are missing.*resumes"):
        store.require_surface(MODEL, DEVICE)


def test_noise_is_taken_out_where_it_contradicts_what_must_be(store: ProfileStore) -> None:
    fill(store, {(1, 1): 100, (2, 1): 110, (1, 4): 105, (2, 4): 90})
    surface = store.surface(MODEL.key, DEVICE.key)
    assert surface is not None
    one, two = ([surface.latency_ns(units, batch) for batch in (1, 4)] for units in (1, 2))
    assert one[0] <= one[1]
    assert two[0] <= two[1]
    assert two[0] <= one[0]
    assert two[1] <= one[1]
    assert all(90 <= time <= 110 for time in one + two)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"units": 4}, "units 2, here 4"),
        ({"versions": {"onnxruntime": "1.32"}}, "1.20.*here.*1.32"),
        ({"driver": "model 2"}, "model 1, here model 2"),
        ({"name": "Other"}, "Some Processor, here Other"),
        ({"memory": "own"}, "host, here own"),
        ({"api": "opencl"}, "cpu, here opencl"),
    ],
)
def test_a_profile_of_another_device_is_an_error_that_says_the_difference(
    store: ProfileStore, change: dict[str, Any], said: str
) -> None:
    fill(store)
    other = replace(DEVICE, **change)
    assert other.key != DEVICE.key
    assert store.surface(MODEL.key, other.key) is None
    with pytest.raises(ConfigError, match=f"(?s)squeezenet.*another device.*{said}.*polymux profile"):
        store.require_surface(MODEL, other)


def test_a_model_that_was_not_profiled_is_an_error(store: ProfileStore) -> None:
    with pytest.raises(ConfigError, match="not profiled"):
        store.require_surface(MODEL, DEVICE)


def test_a_model_is_found_by_name_key_and_beginning_of_its_key(store: ProfileStore) -> None:
    fill(store)
    twin = replace(MODEL, key="sha256:" + "cd" * 32)
    assert store.find_model("squeezenet") == MODEL
    store.put_model(twin)
    assert store.find_model("cdcdcd") == twin
    assert store.find_model(MODEL.key) == MODEL
    with pytest.raises(ConfigError, match=r"several.*sha256:abab.*sha256:cdcd"):
        store.find_model("squeezenet")
    with pytest.raises(ConfigError, match=r"'resnet'.*profiled are: squeezenet"):
        store.find_model("resnet")


def test_measuring_again_replaces_and_forgetting_removes(store: ProfileStore) -> None:
    fill(store)
    fill(store, {(1, 1): 70})
    assert store.points(MODEL.key, DEVICE.key)[0].median_ns == 70
    store.forget(MODEL.key, DEVICE.key)
    assert store.points(MODEL.key, DEVICE.key) == []
    assert store.models() == [MODEL]
    fill(store)
    store.forget(MODEL.key)
    assert store.models() == []
    assert store.points(MODEL.key, DEVICE.key) == []


@pytest.mark.parametrize(
    "values",
    [
        {"repeats": 0},
        {"median_ns": 0},
        {"min_ns": 200},
        {"p95_ns": 1},
        {"half_width_ns": -1},
        {"confidence": 1.0},
        {"batch": 0},
    ],
)
def test_a_point_that_cannot_be_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        replace(point(1, 1, 100), **values)


@pytest.mark.parametrize(("units", "batches"), [((), (1,)), ((2, 1), (1,)), ((1,), (0, 1)), ((1,), (2, 2))])
def test_a_grid_that_is_none_is_refused(units: tuple[int, ...], batches: tuple[int, ...]) -> None:
    with pytest.raises(InvalidRequest):
        Grid(units, batches)


# Bad files


def test_a_store_that_is_not_there_is_an_error_for_readers(path: Path) -> None:
    with pytest.raises(ConfigError, match=r"profiles\.db.*does not exist.*polymux profile"):
        ProfileStore(path)
    path.mkdir(parents=True)
    with pytest.raises(ConfigError, match="is no file"):
        ProfileStore(path)
    with pytest.raises(ConfigError, match="--store"):
        ProfileStore(path, write=True)


@pytest.mark.parametrize("write", [False, True])
@pytest.mark.parametrize("content", [b"model,latency\n" * 400, b"SQLite format 3\0" + b"\x55" * 5000])
def test_a_file_that_is_no_database_is_an_error_and_left_alone(
    path: Path, write: bool, content: bytes
) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"profiles\.db.*is damaged.*move the file away"):
        ProfileStore(path, write=write)
    assert path.read_bytes() == content


def test_a_database_of_another_program_is_an_error_and_left_alone(path: Path) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE browser_history (url TEXT)")
    content = path.read_bytes()
    for write in (False, True):
        with pytest.raises(ConfigError, match="another program"):
            ProfileStore(path, write=write)
    assert path.read_bytes() == content


def test_a_store_of_another_version_is_an_error(store: ProfileStore, path: Path) -> None:
    store.close()
    with sqlite3.connect(path) as other:
        other.execute("PRAGMA user_version = 7")
    with pytest.raises(ConfigError, match="has version 7"):
        ProfileStore(path)


def test_a_truncated_store_is_an_error(store: ProfileStore, path: Path) -> None:
    fill(store)
    store.close()
    content = path.read_bytes()
    for part in (4096 + 100, len(content) // 2, len(content) - 4096):
        path.write_bytes(content[:part])
        with pytest.raises(ConfigError, match="is damaged"):
            ProfileStore(path).points(MODEL.key, DEVICE.key)


def everything(path: Path) -> object:
    with ProfileStore(path) as store:
        surface = store.surface(MODEL.key, DEVICE.key)
        measured = store.points(MODEL.key, DEVICE.key), store.costs(MODEL.key), store.roofs(DEVICE.key)
        return store.models(), store.devices(), measured, surface


def test_a_flipped_byte_anywhere_is_an_error_or_without_effect(store: ProfileStore, path: Path) -> None:
    fill(store)
    store.close()
    whole = everything(path)
    content = path.read_bytes()
    caught = 0
    for at in range(0, len(content), 307):
        path.write_bytes(content[:at] + bytes([content[at] ^ 0x11]) + content[at + 1 :])
        try:
            assert everything(path) == whole, f"byte {at} changed what is read"
        except ConfigError:
            caught += 1
    assert caught > 10


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("point", "median_ns", 1),
        ("point", "units", 3),
        ("grid", "units", "[1]"),
        ("grid", "batches", "[1, 2]"),
        ("device", "identity", json.dumps({"api": "cpu"})),
        ("model", "weight_nbytes", 1),
        ("cost", "flops", 1.0),
        ("roof", "flops_per_s", 1.0),
    ],
)
def test_a_value_that_was_changed_in_the_file_is_an_error(
    store: ProfileStore, path: Path, table: str, column: str, value: object
) -> None:
    fill(store)
    store.close()
    with sqlite3.connect(path) as other:
        other.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = 1", (value,))
    with pytest.raises(ConfigError, match="is damaged"):
        everything(path)


def test_a_store_that_another_process_has_locked_is_an_error_that_says_so(
    store: ProfileStore, path: Path
) -> None:
    fill(store)
    other = sqlite3.connect(path, isolation_level=None)
    try:
        other.execute("BEGIN EXCLUSIVE")
        for write in (False, True):
            with pytest.raises(ConfigError, match="locked by another process.*wait"):
                ProfileStore(path, write=write, timeout_s=0)
        other.execute("ROLLBACK")
        with ProfileStore(path, timeout_s=0) as reader:
            other.execute("BEGIN EXCLUSIVE")
            with pytest.raises(ConfigError, match="locked by another process"):
                reader.surface(MODEL.key, DEVICE.key)
    finally:
        other.close()


def test_readers_go_on_while_a_profile_is_written(store: ProfileStore, path: Path) -> None:
    fill(store)
    with ProfileStore(path, timeout_s=0) as reader:
        store.put_point(MODEL.key, DEVICE.key, point(2, 4, 150))
        surface = reader.surface(MODEL.key, DEVICE.key)
    assert surface is not None
    assert surface.latency_ns(2, 4) == 150


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_store_that_may_not_be_written_is_an_error(store: ProfileStore, path: Path) -> None:
    fill(store)
    store.close()
    path.chmod(0o400)
    with pytest.raises(ConfigError, match="--store"), ProfileStore(path, write=True) as opened:
        opened.put_model(replace(MODEL, name="other"))


# Keys


def test_a_models_key_depends_on_its_content_alone(tmp_path: Path) -> None:
    first, copy, other = tmp_path / "a.onnx", tmp_path / "b.onnx", tmp_path / "c.onnx"
    first.write_bytes(b"graph")
    copy.write_bytes(b"graph")
    other.write_bytes(b"graph!")
    assert model_key(first) == model_key(copy) != model_key(other)
    assert model_key(first).startswith("sha256:")
    with pytest.raises(ConfigError, match=r"none\.onnx.*No such file"):
        model_key(tmp_path / "none.onnx")


def test_a_device_is_identified_by_what_the_server_says_of_it() -> None:
    described = {"api": "cpu", "name": "P", "units": 2, "memory": "host", "details": "cores 0-1"}
    identity = identify(described)
    assert identity.versions["onnxruntime"]
    assert device_key(described) == identity.key == device_key(described | {"details": "cores 2-3"})
    assert device_key(described | {"units": 3}) != identity.key
    assert identify(described | {"api": "opencl"}).driver == "cores 0-1"
    assert DeviceIdentity.from_json(identity.to_json()) == identity


def test_a_device_is_another_one_when_another_library_runs_its_models(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    versions = {"onnxruntime": "1.2", "openvino": "3.4"}
    monkeypatch.setattr(profiles_identity, "package_version", versions.get)
    described = {"api": "cpu", "name": "P", "units": 2, "memory": "host", "details": ""}
    usual = identify(described | {"apis": ["cpu", "onnx", "openvino"]})
    assert usual == identify(described)
    assert usual.versions == {"onnxruntime": "1.2"}
    other = identify(described | {"apis": ["cpu", "openvino", "onnx"]})
    assert other.versions == {"openvino": "3.4"}
    through = identify(described | {"apis": ["cpu", "onnx:dnnl", "onnx"]})
    assert through.versions == {"onnxruntime": "1.2", "execution provider": "dnnl"}
    assert len({usual.key, other.key, through.key}) == 3
    accelerator = described | {"api": "onnxruntime", "apis": ["onnx:cuda"], "details": "onnxruntime 1.2"}
    assert identify(accelerator).versions["execution provider"] == "cuda"
    assert "openvino 3.4" in str(other)
