"""The check of the numerical application: NumPy's steps against the formula, cell by cell."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from polymux.demo.chip import AMBIENT, Chip


def by_hand(chip: Chip, now: np.ndarray) -> np.ndarray:
    f32, given = np.float32, chip.scalars
    after = np.empty_like(now)
    last = len(now) - 1
    for row in range(last + 1):
        for column in range(last + 1):
            centre = now[row, column]
            vertical = (now[max(row - 1, 0), column] + now[min(row + 1, last), column]) - (centre + centre)
            horizontal = (now[row, max(column - 1, 0)] + now[row, min(column + 1, last)]) - (centre + centre)
            change = chip.power[row, column] + vertical * f32(1 / given["ry"])
            change += horizontal * f32(1 / given["rx"])
            change += (f32(given["ambient"]) - centre) * f32(1 / given["rz"])
            after[row, column] = centre + f32(given["step"] / given["capacity"]) * change
    return after


@pytest.mark.parametrize("side", [1, 2, 70])
def test_steps_are_those_of_the_formula_to_the_last_bit(side: int) -> None:
    chip = Chip(side)
    now = chip.start()
    for found, _ in zip(chip.reference(), range(4), strict=False):
        now = by_hand(chip, now)
        assert (found == now).all()


def test_the_chip_becomes_warm_where_it_works_and_nowhere_colder() -> None:
    chip = Chip(64)
    temperatures = next(islice(chip.reference(), 49, None))
    assert temperatures.min() >= AMBIENT
    assert temperatures[chip.power == chip.power.max()].mean() > temperatures[chip.power == 0].mean() + 0.1
