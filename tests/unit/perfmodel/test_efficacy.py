"""The efficacy of share and batch, and its optimum under deadline and rate."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymux.core.errors import InvalidRequest
from polymux.perfmodel import tables
from polymux.perfmodel.efficacy import efficacy, find_optimum, throughput_per_s, transfer_ns, why_none
from polymux.perfmodel.surface import TableSurface

SHARES = tuple(range(10, 101, 10))
MS = 1_000_000
IMAGE_NBYTES = 224 * 224 * 3 * 4
LINK_RATE = 1e9 / transfer_ns(IMAGE_NBYTES, 10e9)
"""Images per second over 10 Gb/s: the paper's assembly time of a batch."""


def test_an_image_takes_481_us_over_ten_gigabits_per_second():
    assert transfer_ns(IMAGE_NBYTES, 10e9) / 1000 == pytest.approx(481.7, abs=0.05)


def test_throughput_and_efficacy_are_the_papers_equations():
    surface = tables.surface("v100", "resnet50")
    assert throughput_per_s(surface, 40, 16) == pytest.approx(16 / 28.04e-3)
    assert efficacy(surface, 40, 16) == pytest.approx(16 / 28.04e-3**2 / 0.4)
    assert efficacy(surface, 40, 16, 80) == pytest.approx(efficacy(surface, 40, 16) * 80 / 100)


def test_the_optimum_of_mobilenet_lies_close_to_thirty_percent():
    surface = tables.surface("v100", "mobilenet")
    best = find_optimum(surface, SHARES, 50 * MS, LINK_RATE, minimum_rate=False)
    assert best is not None
    assert abs(best.units - 30) <= 10
    at_thirty = max(efficacy(surface, 30, batch) for batch in range(1, 17))
    assert at_thirty >= 0.88 * best.efficacy


def test_without_a_minimum_rate_the_optimum_of_most_models_is_far_too_small():
    logs = [
        (name, log)
        for name in ("mobilenet", "alexnet", "resnet50", "vgg19")
        for log in tables.measured("v100")[name]
    ]
    found = [
        find_optimum(tables.surface("v100", *which, 16), SHARES, 50 * MS, LINK_RATE, minimum_rate=False)
        for which in logs
    ]
    small = [best for best in found if best is not None and best.batch <= 2]
    assert len(small) >= len(logs) // 2
    assert all(best.throughput_per_s < LINK_RATE for best in small)


def test_with_a_minimum_rate_the_optimum_serves_that_rate():
    surface = tables.surface("v100", "mobilenet")
    for rate in (100, 500, 1000, 1500, 2000):
        best = find_optimum(surface, SHARES, 50 * MS, rate)
        assert best is not None
        assert best.throughput_per_s >= rate
        assert best.latency_ns + best.assembly_ns <= 50 * MS
        assert best.assembly_ns == pytest.approx(best.batch / rate * 1e9, abs=1)


@given(st.integers(1, 200), st.floats(1, 5000), st.booleans())
def test_the_optimum_is_the_best_of_all_points_that_keep_the_constraints(slo_ms, rate, minimum_rate):
    surface = tables.surface("v100", "alexnet", "CNTK", 16)
    best = find_optimum(surface, SHARES, slo_ms * MS, rate, minimum_rate=minimum_rate)
    values = [
        efficacy(surface, units, batch)
        for units in SHARES
        for batch in range(1, 17)
        if surface.latency_ns(units, batch) <= slo_ms * MS / 2
        and surface.latency_ns(units, batch) + round(batch / rate * 1e9) <= slo_ms * MS
        and (not minimum_rate or batch * 1e9 / surface.latency_ns(units, batch) >= rate)
    ]
    assert (best is None) == (not values)
    if best is not None:
        assert best.efficacy == pytest.approx(max(values))
    assert bool(why_none(surface, SHARES, slo_ms * MS, rate, minimum_rate=minimum_rate)) == (best is None)


@pytest.mark.parametrize(
    ("slo_ns", "rate", "reason"),
    [
        (30, 1, "the fastest batch takes 2e-05 ms, more than half"),
        (40, 1e7, "a batch and its assembly take at least 0.00012 ms, more than the SLO"),
        (1000, 1e9, "serves at most 1e+08 requests/s"),
    ],
)
def test_where_there_is_no_optimum_the_reason_names_the_remedy(slo_ns, rate, reason):
    surface = TableSurface((50, 100), (1, 2), ((30, 40), (20, 20)))
    assert find_optimum(surface, (50, 100), slo_ns, rate) is None
    explained = why_none(surface, (50, 100), slo_ns, rate)
    assert reason in explained
    assert "; give " in explained


@pytest.mark.parametrize(
    ("shares", "slo_ns", "rate"), [((), 1, 1), ((10,), 0, 1), ((10,), 1, 0), ((10,), 1, float("nan"))]
)
def test_an_optimum_without_shares_deadline_or_rate_is_refused(shares, slo_ns, rate):
    with pytest.raises(InvalidRequest, match="optimum over"):
        find_optimum(tables.surface("v100", "resnet50"), shares, slo_ns, rate)


@pytest.mark.parametrize(("nbytes", "bits_per_s"), [(-1, 1), (1, 0), (1, float("nan"))])
def test_a_transfer_without_size_or_rate_is_refused(nbytes, bits_per_s):
    with pytest.raises(InvalidRequest, match="transfer of"):
        transfer_ns(nbytes, bits_per_s)
