"""What the profile store keeps of models that were measured beside each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from polymux.core.errors import InvalidRequest
from polymux.perfmodel.interference import NO_INTERFERENCE
from polymux.profiles import Beside, DeviceIdentity, ProfiledModel, ProfileStore

DEVICE = DeviceIdentity("cpu", "Some Processor", 4)
MODELS = [ProfiledModel(f"sha256:{number:064x}", name) for number, name in enumerate(("light", "heavy"))]
LIGHT, HEAVY = (model.key for model in MODELS)


def pair(model: str, neighbour: str, slowdown: float) -> Beside:
    return Beside(model, neighbour, 2, 4, 2, 4, 1_000_000, round(slowdown * 1_000_000), 1_700_000_000)


PAIRS = [
    pair(LIGHT, LIGHT, 1.1),
    pair(LIGHT, HEAVY, 1.4),
    pair(HEAVY, LIGHT, 1.05),
    pair(HEAVY, HEAVY, 1.2),
]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ProfileStore]:
    with ProfileStore(tmp_path / "profiles.db", write=True) as opened:
        for model in MODELS:
            opened.put_model(model)
        opened.put_device(DEVICE)
        yield opened


def test_pairs_are_kept_and_a_newer_measurement_replaces_an_older_one(store: ProfileStore) -> None:
    for its in PAIRS:
        store.put_beside(DEVICE.key, its)
    assert store.besides(DEVICE.key) == sorted(PAIRS, key=lambda its: (its.model, its.neighbour))
    newer = replace(PAIRS[1], beside_ns=2_000_000)
    store.put_beside(DEVICE.key, newer)
    assert newer in store.besides(DEVICE.key)
    assert len(store.besides(DEVICE.key)) == 4
    assert store.besides("another device") == []


def test_interference_is_fitted_to_the_pairs_by_the_models_names(store: ProfileStore) -> None:
    assert store.interference(DEVICE.key) is NO_INTERFERENCE
    for its in PAIRS:
        store.put_beside(DEVICE.key, its)
    fitted = store.interference(DEVICE.key)
    assert fitted.slowdown("light", [("heavy", 0.5)]) == pytest.approx(1.4, abs=0.01)
    assert fitted.slowdown("heavy", [("light", 0.5)]) == pytest.approx(1.05, abs=0.01)
    assert fitted.largest_error is not None


def test_interference_can_be_asked_for_by_other_names_and_for_some_models_only(store: ProfileStore) -> None:
    for its in PAIRS:
        store.put_beside(DEVICE.key, its)
    fitted = store.interference(DEVICE.key, {HEAVY: "mine"})
    assert set(fitted.sensitivity) == set(fitted.pressure) == {"mine"}
    assert fitted.slowdown("mine", [("mine", 0.5)]) == pytest.approx(1.2, abs=0.01)
    assert store.interference(DEVICE.key, {"sha256:none": "x"}) is NO_INTERFERENCE


def test_forgetting_a_model_forgets_what_it_was_measured_beside(store: ProfileStore) -> None:
    for its in PAIRS:
        store.put_beside(DEVICE.key, its)
    store.forget(HEAVY)
    assert store.besides(DEVICE.key) == [PAIRS[0]]


@pytest.mark.parametrize("change", [{"units": 0}, {"neighbour_batch": 0}, {"alone_ns": 0}, {"beside_ns": -1}])
def test_a_pair_with_numbers_that_cannot_be_is_refused(change: dict[str, int]) -> None:
    with pytest.raises(InvalidRequest, match="1 or more"):
        replace(PAIRS[0], **change)
