"""coexec_gemm_bf16 and coexec_conv2d_bf16 by the processor's instructions: within the bound of bfloat16."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polymux.kernel.chunks import native_chunk
from tests.contract.kernels.kernel_device import KernelDevice
from tests.contract.kernels.test_images import STEPS, convolved, random

FEW = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
NATIVE = 5

pytestmark = pytest.mark.skipif(
    not native_chunk.is_there(), reason="this processor has no instructions for bfloat16"
)


def within(result: np.ndarray, expected: np.ndarray, bound: np.ndarray, depth: int) -> None:
    """Factors are rounded to eight bits, sums to 24; numbers below 1e-38 count as zero."""
    assert (np.abs(result - expected) <= (2 / 256 + 2**-16 + depth * 2**-23) * bound + 1e-36).all()


@pytest.mark.parametrize(
    ("m", "n", "k"),
    [
        (1, 1, 1),
        (14, 32, 2),
        (15, 33, 3),
        (300, 1100, 1030),
        (29, 5, 511),
        (3, 70, 513),
        (5, 4, 0),
        (0, 4, 5),
    ],
)
def test_gemm_multiplies(cpu_device: KernelDevice, m: int, n: int, k: int) -> None:
    a, b = random((m, k), "f4", 1), random((k, n), "f4", 2)
    c = np.full((m, n), np.nan, "f4")
    cpu_device.run("coexec_gemm_bf16", [a, b], [c], method=NATIVE)
    within(c, a.astype("f8") @ b, np.abs(a).astype("f8") @ np.abs(b), k)


@FEW
@given(
    m=st.integers(1, 60),
    n=st.integers(1, 90),
    k=st.integers(1, 70),
    top=st.integers(0, 30),
    left=st.integers(0, 40),
)
def test_gemm_writes_only_its_part(
    cpu_device: KernelDevice, m: int, n: int, k: int, top: int, left: int
) -> None:
    a, b = random((m + top, k), "f4", 1), random((k, n + left + 3), "f4", 2)
    c = np.full((m + top, n + left + 3), 77, "f4")
    ranges = {"first": top, "count": m, "first_column": left, "columns": n}
    cpu_device.run("coexec_gemm_bf16", [a, b], [c], method=NATIVE, **ranges)
    part = np.s_[top : top + m, left : left + n]
    within(c[part], (a.astype("f8") @ b)[part], (np.abs(a).astype("f8") @ np.abs(b))[part], k)
    c[part] = 77
    assert (c == 77).all()


def test_factors_that_bfloat16_has_give_what_single_precision_gives(cpu_device: KernelDevice) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-8, 9, shape).astype("f4") for shape in ((50, 600), (600, 70)))
    c = np.zeros((50, 70), "f4")
    cpu_device.run("coexec_gemm_bf16", [a, b], [c], method=NATIVE)
    np.testing.assert_array_equal(c, a @ b)


def test_infinities_and_nan_arrive(cpu_device: KernelDevice) -> None:
    a, b = random((40, 50), "f4", 1), random((50, 60), "f4", 2)
    a[3, 7], a[5, 1], b[2, 9] = np.nan, np.inf, -np.inf
    c = np.zeros((40, 60), "f4")
    cpu_device.run("coexec_gemm_bf16", [a, b], [c], method=NATIVE)
    with np.errstate(invalid="ignore"):
        expected = a @ b
    np.testing.assert_array_equal(np.isnan(c), np.isnan(expected))
    np.testing.assert_array_equal(np.isinf(c), np.isinf(expected))


@pytest.mark.parametrize("scalars", STEPS)
@pytest.mark.parametrize("groups", [1, 2])
def test_conv2d_correlates(cpu_device: KernelDevice, scalars: dict[str, int], groups: int) -> None:
    x, weight = random((3, 6, 11, 14), "f4", 1), random((8, 6 // groups, 3, 3), "f4", 2)
    expected = convolved(x.astype("f8"), weight.astype("f8"), groups, scalars)
    bound = convolved(np.abs(x).astype("f8"), np.abs(weight), groups, scalars)
    y = np.full(expected.shape, np.nan, "f4")
    cpu_device.run("coexec_conv2d_bf16", [x, weight], [y], method=NATIVE, groups=groups, **scalars)
    within(y, expected, bound, 54)
