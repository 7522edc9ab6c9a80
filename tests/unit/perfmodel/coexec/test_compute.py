"""Models of compute time: what they predict, how they learn, and the errors that they report."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polymux.core.errors import InvalidRequest
from polymux.perfmodel.coexec.compute import ComputeModel, constant_rate
from polymux.perfmodel.coexec.compute_fit import fit_compute
from polymux.perfmodel.coexec.features import Features, Sample
from polymux.perfmodel.coexec.link import LinkModel, fit_link
from polymux.perfmodel.coexec.problem import gemm_problem

SIZES = [(m, n, n) for m in (64, 128, 256, 512, 1024) for n in (512, 1024, 2048)]


def gemm(m, n, k):
    return Features(2.0 * m * n * k, (float(m), float(n), float(k)))


def true_s(m, n, k):
    """A unit with a launch, a rate, packing of B, and a cache that is too small from some size on."""
    spills = 1.0 if n * k * 4 < 8e6 else 1.15
    return (2e-5 + 2.0 * m * n * k / 1e11 + n * k * 4 / 5e9) * spills


def measured(seed=0, noise=0.01, repeats=3):
    rng = np.random.default_rng(seed)
    return [
        Sample(gemm(*size), true_s(*size) * float(rng.lognormal(0, noise)))
        for size in SIZES
        for _ in range(repeats)
    ]


def test_a_law_with_few_terms_is_met_far_beyond_what_was_measured():
    samples = [Sample(gemm(*s), 3e-5 + 2.0 * s[0] * s[1] * s[2] / 9e10 + s[1] * s[2] / 1e9) for s in SIZES]
    model = fit_compute(samples)
    far = gemm(4096, 4096, 4096)
    assert model.predict(far) == pytest.approx(3e-5 + far.work / 9e10 + 4096**2 / 1e9, rel=1e-3)


def test_what_no_law_tells_is_corrected_where_it_was_measured():
    model = fit_compute(measured())
    for size in SIZES:
        assert model.predict(gemm(*size)) == pytest.approx(true_s(*size), rel=0.03)


def test_its_own_error_is_about_that_of_places_it_was_not_told():
    model = fit_compute(measured())
    others = [(m, n, n) for m in (96, 192, 384, 768) for n in (512, 1024, 2048)]
    real = np.mean([abs(model.predict(gemm(*size)) / true_s(*size) - 1) for size in others])
    errors = model.errors
    assert errors is not None
    assert errors.places == len(SIZES)
    assert real < 0.03
    assert real / 4 < errors.mape < 0.06
    assert errors.mape <= errors.p95
    assert errors.rmse_s > 0


def test_errors_need_three_places():
    assert fit_compute(measured()[:6]).errors is None


def test_one_prediction_and_many_are_the_same():
    model = fit_compute(measured())
    pieces = [gemm(*size) for size in SIZES]
    many = model.predict_many(np.array([p.work for p in pieces]), np.array([p.sizes for p in pieces]))
    assert many == pytest.approx([model.predict(piece) for piece in pieces])


def test_padding_to_tiles_is_seen():
    samples = [
        Sample(gemm(m, 1024, 1024), np.ceil(m / 64) * 64 * 1024 * 1024 * 2 / 1e11)
        for m in (64, 96, 128, 160, 512)
    ]
    model = fit_compute(samples, tile=(64, 0, 0))
    assert model.predict(gemm(65, 1024, 1024)) == pytest.approx(
        model.predict(gemm(127, 1024, 1024)), rel=0.02
    )


def test_ten_runs_of_a_shape_bring_the_prediction_to_it():
    model = fit_compute(measured())
    rng = np.random.default_rng(1)
    shape = gemm(700, 1500, 1500)
    for _ in range(10):
        model = model.observe(shape, 1.08 * true_s(700, 1500, 1500) * float(rng.lognormal(0, 0.005)))
    assert model.predict(shape) == pytest.approx(1.08 * true_s(700, 1500, 1500), rel=0.01)


@pytest.mark.parametrize("factor", [0.01, 100.0])
def test_one_spike_moves_nothing(factor):
    model = fit_compute(measured())
    known, new = gemm(256, 1024, 1024), gemm(300, 700, 900)
    for shape in (known, new):
        before = model.predict(shape)
        assert model.observe(shape, before * factor).predict(shape) == pytest.approx(before, rel=0.02)


def test_a_lasting_change_is_followed():
    model, shape = fit_compute(measured()), gemm(256, 1024, 1024)
    for _ in range(9):
        model = model.observe(shape, 2 * true_s(256, 1024, 1024))
    assert model.predict(shape) == pytest.approx(2 * true_s(256, 1024, 1024), rel=0.05)


def test_observing_leaves_the_old_model_as_it_was_and_bounds_what_is_kept():
    model = old = constant_rate(1e11)
    for step in range(300):
        model = model.observe(gemm(10 + 7 * step, 512, 512), 1e-3)
    assert len(model.places) == 64
    assert old.places == ()


def test_a_model_is_written_down_and_read_again():
    model = fit_compute(measured(), tile=(8, 0, 0)).observe(gemm(300, 700, 900), 0.01)
    again = ComputeModel.from_json(model.to_json())
    assert again == model
    assert again.predict(gemm(99, 999, 333)) == model.predict(gemm(99, 999, 333))


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"law": [1]}', "null", '{"law": "x", "tile": [], "places": 3}']
)
def test_something_else_is_no_model(text):
    with pytest.raises(InvalidRequest, match="no compute model"):
        ComputeModel.from_json(text)


@given(
    law=st.tuples(st.floats(0, 1e-3), st.floats(1e-12, 1e-9), st.floats(0, 1e-9), st.floats(0, 1e-9)),
    factor=st.floats(0.5, 2),
)
@settings(max_examples=30, deadline=None)
def test_times_are_positive_whatever_was_measured(law, factor):
    samples = []
    for number, (m, n, k) in enumerate(SIZES):
        work = 2.0 * m * n * k
        seconds = law[0] + law[1] * work + law[2] * work / m + law[3] * work / n
        samples.append(Sample(gemm(m, n, k), seconds * (factor if number % 2 else 1)))
    model = fit_compute(samples)
    for m in (1, 17, 5000):
        assert 0 < model.predict(gemm(m, 700, 9000)) < np.inf


@pytest.mark.parametrize(
    "bad",
    [
        lambda: fit_compute([]),
        lambda: fit_compute([Sample(Features(1.0), 1.0), Sample(Features(1.0, (1.0,)), 1.0)]),
        lambda: fit_compute(measured(), tile=(8,)),
        lambda: Features(0.0, (1.0,)),
        lambda: Features(1.0, (float("inf"),)),
        lambda: Sample(gemm(1, 1, 1), 0.0),
        lambda: Sample(gemm(1, 1, 1), float("nan")),
        lambda: ComputeModel((0.0, 0.0)),
        lambda: ComputeModel((1.0, -1.0)),
        lambda: constant_rate(0.0),
        lambda: fit_compute(measured()).observe(Features(1.0, (1.0,)), 1.0),
        lambda: fit_compute(measured()).predict(Features(1.0, (1.0,))),
        lambda: fit_link("pcie", [], [(1, 1.0)]),
        lambda: LinkModel("pcie", 0.0, 0.0, 0.0, 1.0),
    ],
)
def test_what_makes_no_sense_is_refused(bad):
    with pytest.raises(InvalidRequest):
        bad()


def test_a_link_is_fitted_to_copies_and_one_spike_among_them():
    copies = [(n, 2e-5 + n / 12e9) for n in (4096, 1 << 20, 1 << 24, 1 << 28) for _ in range(3)]
    back = [(n, 1e-5 + n / 6e9) for n, _ in copies]
    link = fit_link("pcie", [*copies, (1 << 20, 9.0)], back)
    assert link.in_s(1 << 26) == pytest.approx(2e-5 + (1 << 26) / 12e9, rel=0.01)
    assert link.out_s(1 << 26) == pytest.approx(1e-5 + (1 << 26) / 6e9, rel=0.01)
    assert link.in_s(0) == 0
    assert LinkModel.from_json(link.to_json()) == link


def test_features_of_a_problem_are_those_of_a_piece_of_it():
    rows, columns = gemm_problem(100, 200, 300), gemm_problem(100, 200, 300, by="columns")
    assert rows.features(10) == gemm(10, 200, 300)
    assert columns.features(10) == gemm(100, 10, 300)
    assert rows.work == columns.work == 2 * 100 * 200 * 300
    assert (rows.fixed_nbytes, columns.fixed_nbytes) == (4 * 200 * 300, 4 * 100 * 300)
