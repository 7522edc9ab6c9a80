"""The digits and the settings of a training: what is given, and what is refused."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from polymux.apps.digits import Digits, load_digits
from polymux.apps.training import Schedule
from polymux.core.errors import InvalidRequest, PolymuxError


def test_training_and_test_digits_are_different_and_the_same_for_every_call() -> None:
    training, test = load_digits(seed=3)
    assert (len(training), len(test)) == (1438, 359)
    assert training.images.shape == (1438, 1, 28, 28)
    assert training.images.dtype == np.float32
    assert (training.images.min(), training.images.max()) == (0, 1)
    assert sorted(set(training.labels)) == list(range(10))
    assert not {image.tobytes() for image in test.images} & {image.tobytes() for image in training.images}
    assert (load_digits(seed=3)[1].images == test.images).all()
    assert not (load_digits(seed=4)[1].images == test.images).all()


def test_batches_hold_each_digit_at_most_once_and_keep_its_label() -> None:
    digits = Digits(np.arange(10, dtype=np.float32).reshape(10, 1, 1, 1), np.arange(10, dtype=np.int32))
    batches = list(digits.batches(3, np.random.default_rng(0)))
    seen = [int(label) for _, labels in batches for label in labels]
    assert len(batches) == 3
    assert len(set(seen)) == 9
    assert seen != sorted(seen)
    assert all((images.ravel() == labels).all() for images, labels in batches)


def test_without_scikit_learn_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(
        PolymuxError, match=r"scikit-learn, which is not installed .*pip install 'polymux\[examples\]'"
    ):
        load_digits()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"batch": 0}, "batch is 0, expected 1 or more"),
        ({"rate": 0.0}, "rate is 0.0, expected a positive number"),
        ({"rate": float("nan")}, "rate is nan"),
        ({"momentum": 1.0}, "momentum is 1.0, expected 0 to less than 1"),
    ],
)
def test_settings_out_of_range_are_named(wrong: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        Schedule(**wrong)
