"""The bound on how long every model can run side by side with others."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from polymux.core.errors import InvalidRequest
from polymux.perfmodel import tables
from polymux.perfmodel.fair_bound import fair_bound

EIGHT = {name: model.knee_units for name, model in tables.models("v100").items() if model.batch is not None}


def _named(*shares):
    return {f"m{at}": share for at, share in enumerate(shares)}


@pytest.mark.parametrize(
    ("shares", "part"),
    [((30, 40, 60), Fraction(2, 3)), ((20, 30, 40, 50), Fraction(2, 3)), ((25, 30, 40, 50), Fraction(3, 5))],
)
def test_the_bounds_of_the_papers_sets_of_models(shares, part):
    assert fair_bound(_named(*shares)).part == part


def test_three_convnets_use_at_most_87_percent_and_eight_models_all_of_the_device():
    convnets = {name: tables.model("v100", name).knee_units for name in ("convnet1", "convnet2", "convnet3")}
    assert float(fair_bound(convnets).utilisation) == pytest.approx(0.867, abs=0.001)
    eight = fair_bound(EIGHT)
    assert len(EIGHT) == 8
    assert float(eight.part) == pytest.approx(0.345, abs=0.0005)
    assert eight.utilisation == 1


def test_the_sets_fit_and_give_every_model_its_part():
    found = fair_bound(EIGHT)
    assert sum(time for _, time in found.sets) == 1
    assert all(sum(EIGHT[name] for name in together) <= 100 for together, _ in found.sets)
    for name in EIGHT:
        assert sum(time for together, time in found.sets if name in together) >= found.part


def test_a_weight_asks_for_more_of_the_time():
    found = fair_bound({"a": 60, "b": 60}, weights={"a": 3})
    assert (found.part, found.utilisation) == (Fraction(1, 4), Fraction(60, 100))
    assert dict(found.sets) == {("a",): Fraction(3, 4), ("b",): Fraction(1, 4)}


def test_models_that_all_fit_together_run_all_the_time():
    assert fair_bound(_named(30, 30, 40)).part == 1


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=6), st.data())
def test_the_bound_is_the_optimum_of_the_linear_program(shares, data):
    weights = data.draw(st.lists(st.integers(1, 5), min_size=len(shares), max_size=len(shares)))
    named = _named(*shares)
    found = fair_bound(named, 20, dict(zip(named, weights, strict=True)))
    subsets = [[bool(mask >> at & 1) for at in range(len(shares))] for mask in range(1 << len(shares))]
    sets = np.array([s for s in subsets if sum(np.array(shares)[s]) <= 20], float).T
    left = np.hstack([-sets, np.array(weights, float)[:, None]])
    cost = np.zeros(sets.shape[1] + 1)
    cost[-1] = -1
    total = np.ones((1, len(cost)))
    total[0, -1] = 0
    best = linprog(cost, A_ub=np.vstack([left, total]), b_ub=[0] * len(shares) + [1])
    assert float(found.part) == pytest.approx(-best.fun, abs=1e-7)


@pytest.mark.parametrize(
    ("shares", "weights", "complaint"),
    [
        ({}, None, "bound for 0 models"),
        (_named(*[1] * 13), None, "bound for 13 models"),
        ({"a": 0}, None, "a has a share of 0"),
        ({"a": 101}, None, "a has a share of 101"),
        ({"a": 5}, {"a": 0}, "a weight of 0"),
    ],
)
def test_shares_and_weights_that_cannot_be_are_refused(shares, weights, complaint):
    with pytest.raises(InvalidRequest, match=complaint):
        fair_bound(shares, weights=weights)
