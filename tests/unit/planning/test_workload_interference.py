"""Workload files with models that disturb each other: by numbers of the file, or as they were measured here."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from polymux.core.errors import ConfigError
from polymux.perfmodel.interference import NO_INTERFERENCE
from polymux.planning.workload import Workload, parse_workload
from polymux.profiles import Beside, DeviceIdentity, Grid, Point, ProfiledModel, ProfileStore

HERE = DeviceIdentity("cpu", "Some processor", 4)
MODELS = {name: ProfiledModel(f"sha256:{name:0>64}", name) for name in ("light", "heavy")}
SLOWDOWNS = {
    ("light", "light"): 1.1,
    ("light", "heavy"): 1.4,
    ("heavy", "light"): 1.05,
    ("heavy", "heavy"): 1.2,
}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "profiles.db"
    with ProfileStore(path, write=True) as profiles:
        profiles.put_device(HERE)
        for model in MODELS.values():
            profiles.put_model(model)
            profiles.put_grid(model.key, HERE.key, Grid((2, 4), (1,)))
            for units in (2, 4):
                time_ns = 8_000_000 // units
                point = Point(units, 1, 10, time_ns, time_ns, time_ns, time_ns, 0, 0.95)
                profiles.put_point(model.key, HERE.key, point)
        for (one, two), slowdown in SLOWDOWNS.items():
            pair = Beside(MODELS[one].key, MODELS[two].key, 2, 1, 2, 1, 1000, round(1000 * slowdown))
            profiles.put_beside(HERE.key, pair)
    return path


def _workload(store: Path | None, more: str = "", device: str = 'profile = "cpu"') -> Workload:
    text = f"""
        [[device]]
        {device}
        [[model]]
        name = "mine"
        profile = "light"
        copies = 2
        slo_ms = 50
        rate_per_s = 9
        [[model]]
        name = "heavy"
        slo_ms = 50
        rate_per_s = 9
        {more}
    """
    return parse_workload("w.toml", tomllib.loads(text), store)


def test_models_that_were_measured_together_disturb_each_other_as_measured(store: Path) -> None:
    found = _workload(store).scenario().interference
    assert found.slowdown("mine-0", [("heavy", 0.5)]) == pytest.approx(1.4)
    assert found.slowdown("mine-1", [("mine-0", 0.5)]) == pytest.approx(1.1)
    assert found.slowdown("heavy", [("mine-1", 0.25)]) == pytest.approx(1.025)


def test_numbers_in_the_file_count_instead_of_what_was_measured(store: Path) -> None:
    found = _workload(store, "pressure = 1").interference
    assert found is NO_INTERFERENCE
    sensitive = _workload(store, "pressure = 1\nsensitivity = 0.5").interference
    assert sensitive.slowdown("heavy", [("heavy", 0.5)]) == 1.25
    assert sensitive.slowdown("mine-0", [("heavy", 0.5)]) == 1


def test_a_model_that_was_not_measured_together_counts_as_the_mean_of_those_that_were(store: Path) -> None:
    with ProfileStore(store, write=True) as profiles:
        profiles.forget(MODELS["heavy"].key)
    surface = "surface = [{ share = [2, 4], batch = [1], latency_ms = [[4], [2]] }]"
    found = _workload(store, surface).interference
    assert found.pairs == {
        (one, two): pytest.approx(0.2) for one in ("mine-0", "mine-1") for two in ("mine-0", "mine-1")
    }
    assert "heavy" not in found.sensitivity
    assert found.slowdown("heavy", [("mine-0", 0.5)]) == pytest.approx(1.1)


def test_a_store_that_is_damaged_is_an_error_and_not_no_interference(store: Path) -> None:
    import sqlite3

    connection = sqlite3.connect(store)
    connection.execute("UPDATE beside SET beside_ns = 5000")
    connection.commit()
    connection.close()
    with pytest.raises(ConfigError, match="damaged.*beside"):
        _workload(store)
