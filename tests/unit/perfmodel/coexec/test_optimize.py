"""Splits against the exact optimum, and what they have to keep."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from polymux.core.errors import InvalidRequest
from polymux.perfmodel.coexec.compute import constant_rate
from polymux.perfmodel.coexec.compute_fit import fit_compute
from polymux.perfmodel.coexec.features import Sample
from polymux.perfmodel.coexec.link import LinkModel
from polymux.perfmodel.coexec.optimize import optimize
from polymux.perfmodel.coexec.problem import Objective, conv2d_problem, gemm_problem
from polymux.perfmodel.coexec.unit import Load, UnitModel
from polymux.perfmodel.energy import PowerModel
from tests.unit.perfmodel.coexec.machines import assert_whole

TWO = (
    UnitModel("cpu:0/blas", "cpu:0", constant_rate(1e11)),
    UnitModel("opencl:0/gemm", "opencl:0", constant_rate(0.5e11)),
)


def counts(split):
    return {part.unit: part.count for part in split.parts}


def test_without_copies_parts_are_as_the_rates():
    split = optimize(gemm_problem(3000, 1000, 1000), TWO)
    assert counts(split) == {"cpu:0/blas": 2000, "opencl:0/gemm": 1000}
    assert split.makespan_s == pytest.approx(3000 * 1000 * 1000 * 2 / 1.5e11)
    assert split.bound_s == pytest.approx(split.makespan_s)
    assert split.energy_j is None


def test_a_device_that_is_slower_now_and_not_yet_free_gets_less():
    problem = gemm_problem(3000, 1000, 1000)
    slowed = optimize(problem, TWO, loads={"cpu:0/blas": Load(slowdown=2.0)})
    assert counts(slowed) == {"cpu:0/blas": 1500, "opencl:0/gemm": 1500}
    later = optimize(problem, TWO, loads={"cpu:0/blas": Load(ready_s=0.01)})
    assert counts(later)["cpu:0/blas"] == pytest.approx(2000 - 0.01 * 1e11 * 0.5e11 / 1.5e11 / 2e6, abs=2)
    busy = optimize(problem, TWO, loads={"cpu:0/blas": Load(ready_s=10.0)})
    assert counts(busy) == {"opencl:0/gemm": 3000}


def test_units_of_one_device_are_alternatives():
    fast = replace(TWO[0], id="cpu:0/bf16", compute=constant_rate(2e11))
    split = optimize(gemm_problem(3000, 1000, 1000), [*TWO, fast])
    assert counts(split) == {"opencl:0/gemm": 600, "cpu:0/bf16": 2400}


def test_a_small_problem_goes_to_one_device():
    units = [TWO[0], replace(TWO[1], compute=constant_rate(1e11, 50e-6))]
    split = optimize(gemm_problem(64, 64, 64), units)
    assert len(split.parts) == 1


def test_nobody_gets_less_than_the_smallest_chunk():
    for m in range(100, 400, 7):
        units = [replace(TWO[0], min_chunk=100), replace(TWO[1], min_chunk=64)]
        split = optimize(gemm_problem(m, 300, 300), units)
        assert_whole(split)
        for part in split.parts:
            assert part.count >= {"cpu:0/blas": 100, "opencl:0/gemm": 64}[part.unit]


def test_eight_devices_on_one_bus_are_split_about_as_well_as_copies_that_never_wait_allow():
    rng = np.random.default_rng(3)
    units = [
        UnitModel(
            f"gpu:{i}/u", f"gpu:{i}", constant_rate(float(10 ** rng.uniform(12, 13)), 1e-5),
            LinkModel("pcie", 1e-5, 25e9, 1e-5, 25e9) if i else None,
        )
        for i in range(8)
    ]  # fmt: skip
    problem = conv2d_problem(1024, 64, 64, (3, 3), (56, 56), in_size=(56, 56))
    split = optimize(problem, units)
    assert_whole(split)
    alone = min(optimize(problem, [unit]).makespan_s for unit in units)
    assert split.bound_s <= split.makespan_s < alone


def test_energy_alone_without_idle_power_goes_to_the_thriftiest_device():
    units = [
        replace(TWO[0], power=PowerModel(0, 100)),
        replace(TWO[1], power=PowerModel(0, 40)),
    ]  # 1e-9 and 0.8e-9 J for each operation
    problem = gemm_problem(1000, 1000, 1000)
    split = optimize(problem, units, Objective.parse("energy"))
    assert counts(split) == {"opencl:0/gemm": 1000}
    assert split.energy_j == pytest.approx(2e9 / 0.5e11 * 40)
    idle = [replace(unit, power=PowerModel(1000, 1000 + unit.power.busy_w)) for unit in units]
    assert len(optimize(problem, idle, Objective.parse("energy")).parts) == 2  # it pays to be done early


def test_a_model_with_a_cache_in_it_is_split_where_both_really_end_together():
    def seconds(m):
        return 2 * m * 1e6 / (1e11 if m < 700 else 0.6e11)

    samples = [
        Sample(gemm_problem(4096, 1000, 1000).features(m), seconds(m))
        for m in (64, 128, 256, 512, 650, 750, 1024, 2048, 4096)
    ]
    units = [replace(TWO[0], compute=fit_compute(samples)), TWO[1]]
    split = optimize(gemm_problem(1200, 1000, 1000), units)
    ends = [part.end_s for part in split.parts]
    assert max(ends) == pytest.approx(min(ends), rel=0.01)


def test_without_room_for_a_piece_a_device_is_left_out_and_without_any_it_is_said():
    link = LinkModel("pcie", 1e-5, 1e10, 1e-5, 1e10)
    small = replace(TWO[1], link=link, memory_nbytes=1000)
    problem = gemm_problem(1000, 1000, 1000)
    assert counts(optimize(problem, [TWO[0], small])) == {"cpu:0/blas": 1000}
    with pytest.raises(InvalidRequest, match=r"opencl:0/gemm 1,000 bytes.*4,000,000 bytes"):
        optimize(problem, [small])


def test_rows_that_are_copied_again_for_each_block_count():
    link = LinkModel("pcie", 1e-5, 1e9, 1e-5, 1e9)
    problem = gemm_problem(4096, 4096, 4096)
    roomy, tight = (
        replace(TWO[1], compute=constant_rate(1e12), link=link, memory_nbytes=n) for n in (1 << 30, 24 << 20)
    )
    assert (
        counts(optimize(problem, [TWO[0], tight]))[tight.id]
        < counts(optimize(problem, [TWO[0], roomy]))[roomy.id]
    )


@pytest.mark.parametrize(
    "bad",
    [
        lambda: optimize(gemm_problem(10, 10, 10), []),
        lambda: optimize(gemm_problem(10, 10, 10), [TWO[0], TWO[0]]),
        lambda: optimize(gemm_problem(10, 10, 10), TWO, Objective.parse("energy")),
        lambda: gemm_problem(0, 10, 10),
        lambda: conv2d_problem(1, 3, 8, (3, 3), (1, 1), in_size=(3, 3), groups=2),
        lambda: Objective(0, 0),
        lambda: Objective(-1, 1),
        lambda: Objective.parse("speed"),
        lambda: Objective.parse({"time": 1, "money": 2}),
        lambda: Objective.parse({"time": "much"}),
        lambda: Load(0.5),
        lambda: Load(1.0, -1.0),
        lambda: UnitModel("a", "a", constant_rate(1.0), tile=0),
        lambda: UnitModel("a", "a", constant_rate(1.0), precision="fp8"),
    ],
)
def test_what_makes_no_sense_is_refused(bad):
    with pytest.raises(InvalidRequest):
        bad()
