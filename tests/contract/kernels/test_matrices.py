"""gemm, gemv, transpose."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polymux.device.protocol import LaunchError
from tests.contract.kernels.kernel_device import KernelDevice

EXTENTS = (
    (1, 1, 1),
    (3, 5, 7),
    (64, 64, 64),
    (65, 130, 33),
    (128, 1, 200),
    (1, 257, 40),
    (200, 150, 16),
    (5, 4, 0),
)
FEW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def matrix(rows: int, columns: int, dtype: str, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, columns)).astype(dtype)


def check(result: np.ndarray, expected: np.ndarray, depth: int) -> None:
    np.testing.assert_allclose(result, expected, rtol=0, atol=np.finfo(result.dtype).eps * 8 * (depth + 1))


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize(("transpose_a", "transpose_b"), list(product([False, True], repeat=2)))
@pytest.mark.parametrize("extents", EXTENTS)
def test_gemm_multiplies(
    device: KernelDevice, extents: tuple[int, int, int], transpose_a: bool, transpose_b: bool, dtype: str
) -> None:
    m, n, k = extents
    a, b = matrix(m, k, dtype, 1), matrix(k, n, dtype, 2)
    c = np.full((m, n), np.nan, dtype)
    given_a = np.ascontiguousarray(a.T) if transpose_a else a
    given_b = np.ascontiguousarray(b.T) if transpose_b else b
    device.run("gemm", [given_a, given_b], [c], alpha=-1.5, transpose_a=transpose_a, transpose_b=transpose_b)
    check(c, (-1.5 * (a.astype("f8") @ b.astype("f8"))).astype(dtype), k)


def test_gemm_of_a_size_that_is_split_over_the_cores(device: KernelDevice) -> None:
    for m, n in ((301, 90), (90, 301)):
        a, b = matrix(m, 120, "f8", 1), matrix(120, n, "f8", 2)
        c = np.full((m, n), np.nan)
        device.run("gemm", [a, b], [c], alpha=2.0)
        check(c, 2.0 * (a @ b), 120)


def test_gemm_merges_all_axes_but_the_first(device: KernelDevice) -> None:
    images, weight = matrix(5, 24, "f4", 1).reshape(5, 2, 3, 4), matrix(7, 24, "f4", 2)
    y, back = np.full((5, 7), np.nan, "f4"), np.full((5, 2, 3, 4), np.nan, "f4")
    device.run("gemm", [images, weight], [y], transpose_b=True, alpha=2.0)
    check(y, 2 * images.reshape(5, 24) @ weight.T, 24)
    device.run("gemm", [y, weight], [back])
    np.testing.assert_allclose(back.reshape(5, 24), y @ weight, rtol=1e-5, atol=1e-4)
    gradient = np.full((7, 24), np.nan, "f4")
    device.run("gemm", [y, images], [gradient], transpose_a=True)
    np.testing.assert_allclose(gradient, y.T @ images.reshape(5, 24), rtol=1e-5, atol=1e-4)


@FEW
@given(m=st.integers(0, 90), n=st.integers(0, 140), k=st.integers(0, 70), seed=st.integers(0, 100))
def test_gemm_of_any_shape(device: KernelDevice, m: int, n: int, k: int, seed: int) -> None:
    a, b = matrix(m, k, "f4", seed), matrix(k, n, "f4", seed + 1)
    c = np.full((m, n), np.nan, "f4")
    device.run("gemm", [a, b], [c])
    check(c, a @ b, k)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize(("m", "k"), [(1, 1), (3, 200), (200, 3), (65, 129), (900, 700), (5, 0), (0, 5)])
def test_gemv_multiplies(device: KernelDevice, m: int, k: int, transpose: bool, dtype: str) -> None:
    a, x = matrix(m, k, dtype, 1), matrix(1, k, dtype, 2)[0]
    y = np.full(m, np.nan, dtype)
    device.run(
        "gemv", [np.ascontiguousarray(a.T) if transpose else a, x], [y], alpha=0.5, transpose=transpose
    )
    check(y, (0.5 * (a.astype("f8") @ x.astype("f8"))).astype(dtype), k)


@pytest.mark.parametrize("dtype", ["u1", "i2", "f2", "f4", "f8", "c16", "b1"])
@pytest.mark.parametrize(
    "shape", [(1, 1), (1, 9), (33, 65), (16, 16), (3, 31, 17), (2, 2, 3, 5), (4, 0), (0, 3, 2)]
)
def test_transpose_swaps_the_last_two_axes(device: KernelDevice, shape: tuple[int, ...], dtype: str) -> None:
    x = (np.random.default_rng(0).integers(0, 100, shape)).astype(dtype)
    y = np.zeros((*shape[:-2], shape[-1], shape[-2]), dtype)
    device.run("transpose", [x], [y])
    assert y.tobytes() == np.ascontiguousarray(np.swapaxes(x, -1, -2)).tobytes()


def test_transpose_of_a_size_that_is_split_over_the_cores(device: KernelDevice) -> None:
    x = np.arange(1003 * 1999, dtype="f8").reshape(1003, 1999)
    y = np.zeros((1999, 1003))
    device.run("transpose", [x], [y])
    assert (y == x.T).all()


@pytest.mark.parametrize(
    ("kernel", "shapes", "scalars", "message"),
    [
        (
            "gemm",
            [(3, 4), (5, 6), (3, 6)],
            {},
            r"b has shape \(5, 6\), expected \(4, 6\) \(op\(a\) is 3 x 4\)",
        ),
        ("gemm", [(3, 4), (4, 6), (6, 3)], {}, r"c has shape \(6, 3\), expected \(3, 6\)"),
        ("gemm", [(3, 4), (4, 6), (3, 6)], {"transpose_a": True}, r"b has shape \(4, 6\), expected \(3, 6\)"),
        ("gemm", [(3, 4), (4,), (3, 6)], {}, r"b has shape \(4,\), expected 2 dimensions"),
        ("gemm", [(4,), (4, 6), (3, 6)], {}, r"a has shape \(4,\), expected 2 dimensions"),
        ("gemm", [(2, 3, 4), (4, 6), (3, 6)], {}, r"b has shape \(4, 6\), expected \(12, 6\)"),
        ("gemv", [(3, 4), (3,), (3,)], {}, r"x has shape \(3,\), expected \(4,\)"),
        ("gemv", [(3, 4), (4,), (4,)], {}, r"y has shape \(4,\), expected \(3,\)"),
        ("gemv", [(12,), (4,), (3,)], {}, r"a has shape \(12,\), expected 2 dimensions"),
        ("transpose", [(4,), (4,)], {}, r"x has shape \(4,\), expected 2 or more dimensions"),
        ("transpose", [(4, 5), (4, 5)], {}, r"y has shape \(4, 5\), expected \(5, 4\)"),
    ],
)
def test_matrices_that_do_not_fit_are_named(
    device: KernelDevice, kernel: str, shapes: list[tuple[int, ...]], scalars: dict[str, bool], message: str
) -> None:
    *inputs, output = [np.zeros(shape, "f4") for shape in shapes]
    with pytest.raises(LaunchError, match=message):
        device.run(kernel, inputs, [output], **scalars)


@pytest.mark.parametrize(("kernel", "inputs"), [("gemm", 2), ("gemv", 2), ("transpose", 1)])
def test_a_product_cannot_be_written_over_its_factors(device: KernelDevice, kernel: str, inputs: int) -> None:
    a = np.zeros((1, 1), "f4")
    arrays = [a, a if kernel == "gemm" else np.zeros(1, "f4")][:inputs]
    output = a if kernel != "gemv" else arrays[1]
    with pytest.raises(LaunchError, match="must not share memory with"):
        device.run(kernel, arrays, [output])
