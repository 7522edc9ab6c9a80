"""random_uniform and random_normal: the published generator, the same bits everywhere, the right distribution."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats

from polymux.core.implementation import OpenCLSource
from polymux.device.protocol import LaunchError
from polymux.kernel.definition import Definition
from tests.contract.kernels.kernel_device import BUILT_IN, KernelDevice
from tests.contract.kernels.philox_reference import normal, uniform

KINDS = ("random_uniform", "random_normal")
REFERENCE = {"random_uniform": uniform, "random_normal": normal}
SEEDS = (0, 1, 0xA4093822299F31D0, 2**64 - 1)
FEW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def generated(
    device: KernelDevice, kernel: str, shape: tuple[int, ...], dtype: str, **scalars: Any
) -> np.ndarray:
    y = np.full(shape, np.nan, dtype)
    device.run(kernel, [], [y], **scalars)
    return y


@pytest.mark.parametrize("kernel", KINDS)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("n", "offset"), [(0, 0), (1, 0), (3, 5), (4096, 0), (5000, 3), (700, 2**32 * 4 - 100)]
)
def test_numbers_have_the_bits_of_the_reference(
    device: KernelDevice, n: int, offset: int, seed: int, dtype: str, kernel: str
) -> None:
    y = generated(device, kernel, (n,), dtype, seed=seed, stream=7, offset=offset)
    assert y.tobytes() == REFERENCE[kernel](n, dtype, seed, 7, offset).tobytes()


@pytest.mark.parametrize("kernel", KINDS)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_a_million_numbers_have_the_bits_of_the_reference(
    device: KernelDevice, dtype: str, kernel: str
) -> None:
    y = generated(device, kernel, (1000, 1013), dtype, seed=42)
    assert y.tobytes() == REFERENCE[kernel](y.size, dtype, 42, 0, 0).tobytes()


@pytest.mark.parametrize("kernel", KINDS)
def test_extreme_words_have_the_bits_of_the_reference(device: KernelDevice, kernel: str) -> None:
    """The end of the sequence, where counters are largest."""
    offset = 2**64 - 1000
    y = generated(device, kernel, (999,), "f8", seed=9, stream=2**64 - 1, offset=offset)
    assert y.tobytes() == REFERENCE[kernel](999, "f8", 9, 2**64 - 1, offset).tobytes()


@FEW
@given(
    cuts=st.lists(st.integers(0, 400), max_size=4).map(sorted),
    offset=st.integers(0, 10),
    kernel=st.sampled_from(KINDS),
    dtype=st.sampled_from(["f4", "f8"]),
)
def test_parts_filled_by_several_tasks_are_those_of_one_task(
    device: KernelDevice, cuts: list[int], offset: int, kernel: str, dtype: str
) -> None:
    whole = generated(device, kernel, (400,), dtype, seed=3, offset=offset)
    bounds = [0, *cuts, 400]
    parts = [
        generated(device, kernel, (end - begin,), dtype, seed=3, offset=offset + begin)
        for begin, end in itertools.pairwise(bounds)
    ]
    assert np.concatenate(parts).tobytes() == whole.tobytes()


def test_seeds_and_streams_give_other_numbers(device: KernelDevice) -> None:
    results = [
        generated(device, "random_uniform", (100,), "f8", seed=seed, stream=stream)
        for seed, stream in ((1, 0), (2, 0), (1, 1), (2**32, 0), (1, 2**32))
    ]
    assert len({result.tobytes() for result in results}) == len(results)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_uniform_numbers_are_uniform(device: KernelDevice, dtype: str) -> None:
    y = generated(device, "random_uniform", (400_000,), dtype, seed=2024)
    assert y.min() >= 0
    assert y.max() < 1
    assert stats.kstest(y.astype("f8"), "uniform").pvalue > 1e-4
    counts = np.histogram(y, bins=256, range=(0, 1))[0]
    assert stats.chisquare(counts).pvalue > 1e-4
    assert abs(stats.pearsonr(y[:-1], y[1:]).statistic) < 0.01


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_normal_numbers_are_normal(device: KernelDevice, dtype: str) -> None:
    y = generated(device, "random_normal", (400_000,), dtype, seed=2024).astype("f8")
    assert stats.kstest(y, "norm").pvalue > 1e-4
    assert stats.normaltest(y).pvalue > 1e-4
    # the tail: 4 deviations and more
    assert stats.binomtest(int((np.abs(y) > 4).sum()), y.size, 2 * stats.norm.sf(4)).pvalue > 1e-4
    assert abs(stats.pearsonr(y[:-1], y[1:]).statistic) < 0.01
    assert abs(stats.pearsonr(y[::2] ** 2, y[1::2] ** 2).statistic) < 0.01


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_numbers_are_scaled_and_shifted(device: KernelDevice, dtype: str) -> None:
    number = np.dtype(dtype).type
    y = generated(device, "random_uniform", (1001,), dtype, seed=1, low=-2.5, high=10.1)
    assert y.tobytes() == (uniform(1001, dtype, 1, 0, 0) * number(12.6) + number(-2.5)).tobytes()
    y = generated(device, "random_normal", (1001,), dtype, seed=1, mean=100.0, deviation=0.3)
    assert y.tobytes() == (normal(1001, dtype, 1, 0, 0) * number(0.3) + number(100.0)).tobytes()


def test_a_device_without_double_precision_gives_the_same_bits(opencl_device: KernelDevice) -> None:
    definition = BUILT_IN["random_normal"]
    source = next(i for i in definition.implementations if isinstance(i, OpenCLSource))
    without = OpenCLSource("#undef cl_khr_fp64\n" + source.source, source.plan, source.options)
    y = np.zeros(100_000, "f4")
    opencl_device.run(Definition(definition.spec, (without,)), [], [y], seed=5)
    assert y.tobytes() == normal(y.size, "f4", 5, 0, 0).tobytes()


@pytest.mark.parametrize(
    ("kernel", "scalars", "message"),
    [
        ("random_uniform", {"low": 1.0, "high": 0.0}, "low is 1.* and high 0"),
        ("random_uniform", {"high": float("inf")}, "expected finite numbers"),
        ("random_uniform", {"low": float("nan")}, "expected finite numbers"),
        ("random_normal", {"deviation": -1.0}, "deviation -1"),
        ("random_normal", {"mean": float("inf")}, "expected finite numbers"),
        ("random_normal", {"offset": 2**64 - 3}, "leaves the sequence"),
    ],
)
def test_impossible_distributions_are_named(
    device: KernelDevice, kernel: str, scalars: dict[str, Any], message: str
) -> None:
    with pytest.raises(LaunchError, match=message):
        generated(device, kernel, (10,), "f4", seed=1, **scalars)


def test_integers_cannot_be_drawn(device: KernelDevice) -> None:
    with pytest.raises(LaunchError, match="y has dtype i4, expected one of f4, f8"):
        device.run("random_uniform", [], [np.zeros(4, "i4")], seed=1)
