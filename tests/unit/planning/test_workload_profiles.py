"""Workload files with devices and models that were measured here; a profile that does not fit is told."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from polymux.core.errors import ConfigError
from polymux.planning.workload import Workload, parse_workload
from polymux.profiles import ProfileStore
from polymux.profiles.identity import DeviceIdentity
from polymux.profiles.records import Grid, Point, ProfiledModel

HERE = DeviceIdentity("cpu", "Some processor", 4)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Hold a whole profile of one model, and half of another's."""
    path = tmp_path / "profiles.db"
    with ProfileStore(path, write=True) as profiles:
        profiles.put_device(HERE)
        for name, batches in (("whole", (1, 4)), ("half", (1,))):
            model = ProfiledModel(f"sha256:{name:0>64}", name, weight_nbytes=1000)
            profiles.put_model(model)
            profiles.put_grid(model.key, HERE.key, Grid((1, 4), (1, 4)))
            for units in (1, 4):
                for batch in batches:
                    time_ns = 8_000_000 * batch // units
                    point = Point(units, batch, 10, time_ns, time_ns, time_ns, time_ns, 0, 0.95)
                    profiles.put_point(model.key, HERE.key, point)
    return path


def profiled(store: Path, device: str = "cpu", model: str = "whole") -> Workload:
    named = f'[[device]]\nprofile = "{device}"\n[[model]]\nprofile = "{model}"\n'
    text = named + 'name = "mine"\nslo_ms = 50\nrate_per_s = 9\n'
    return parse_workload("w.toml", tomllib.loads(text), store)


def test_profiled_models_run_on_the_device_on_which_they_were_measured(store: Path) -> None:
    workload = profiled(store)
    (device,) = workload.serving_devices()
    assert (device.kind, device.units, device.shares) == (HERE.key, 4, (1, 4))
    model = workload.loads[0].model
    assert model.surfaces[HERE.key].latency_ns(4, 4) == 8_000_000
    assert model.memory_nbytes == 1000


@pytest.mark.parametrize(
    ("device", "model", "problem"),
    [
        ("gpu", "whole", "no device begins so"),
        ("cpu", "other", "profiled are: half, whole"),
        ("cpu", "half", "2 points of its profile are missing"),
    ],
)
def test_a_profile_that_is_not_there_is_told(store: Path, device: str, model: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        profiled(store, device, model)


def test_a_model_that_was_profiled_on_another_device_is_told_with_what_differs(store: Path) -> None:
    with ProfileStore(store, write=True) as profiles:
        profiles.put_device(replace(HERE, units=8))
    with pytest.raises(ConfigError, match="profiled on another device .units 4, here 8"):
        profiled(store, replace(HERE, units=8).key)


def test_a_store_that_is_damaged_or_missing_is_told(store: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.db"):
        profiled(store.with_name("none.db"))
    content = bytearray(store.read_bytes())
    content[len(content) // 3 :] = b"x" * (len(content) - len(content) // 3)
    store.write_bytes(content)
    with pytest.raises(ConfigError, match=r"profiles\.db"):
        profiled(store)
