"""gemm_batch."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from polymux.device.protocol import LaunchError
from tests.contract.kernels.kernel_device import KernelDevice

EXTENTS = ((1, 1, 1, 1), (5, 3, 4, 7), (3, 65, 130, 33), (7, 20, 64, 25), (0, 3, 4, 5), (2, 3, 4, 0))


def random(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def given(matrix: np.ndarray, transposed: bool) -> np.ndarray:
    return np.ascontiguousarray(np.swapaxes(matrix, -1, -2)) if transposed else matrix


def check(result: np.ndarray, expected: np.ndarray, depth: int) -> None:
    np.testing.assert_allclose(result, expected, rtol=0, atol=np.finfo(result.dtype).eps * 8 * (depth + 1))


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("batched", ["a", "b", "ab", "sum"])
@pytest.mark.parametrize(("transpose_a", "transpose_b"), list(product([False, True], repeat=2)))
@pytest.mark.parametrize("extents", EXTENTS)
def test_gemm_batch_multiplies(
    device: KernelDevice,
    extents: tuple[int, int, int, int],
    transpose_a: bool,
    transpose_b: bool,
    batched: str,
    dtype: str,
) -> None:
    batch, m, n, k = extents
    a = random((m, k) if batched == "b" else (batch, m, k), dtype, 1)
    b = random((k, n) if batched == "a" else (batch, k, n), dtype, 2)
    expected = -1.5 * (a.astype("f8") @ b.astype("f8"))
    if batched == "sum":
        expected = expected.sum(axis=0)
    c = np.full(expected.shape, np.nan, dtype)
    transposes = {"transpose_a": transpose_a, "transpose_b": transpose_b}
    device.run("gemm_batch", [given(a, transpose_a), given(b, transpose_b)], [c], alpha=-1.5, **transposes)
    check(c, expected.astype(dtype), k * (batch if batched == "sum" else 1))


def test_axes_after_the_second_are_merged(device: KernelDevice) -> None:
    weight, columns = random((6, 9), "f4", 1), random((4, 9, 10), "f4", 2)
    y = np.full((4, 6, 2, 5), np.nan, "f4")
    device.run("gemm_batch", [weight, columns], [y])
    check(y.reshape(4, 6, 10), weight @ columns, 9)
    gradient = np.full((6, 9), np.nan, "f4")
    device.run("gemm_batch", [y, columns], [gradient], transpose_b=True)
    check(gradient, (y.reshape(4, 6, 10) @ np.swapaxes(columns, 1, 2)).sum(0), 400)


def test_products_of_a_size_that_is_split_over_the_cores(device: KernelDevice) -> None:
    a, b = random((31, 65, 60), "f8", 1), random((31, 60, 70), "f8", 2)
    c, total = np.full((31, 65, 70), np.nan), np.full((65, 70), np.nan)
    device.run("gemm_batch", [a, b], [c], alpha=2.0)
    check(c, 2 * (a @ b), 60)
    device.run("gemm_batch", [a, b], [total])
    check(total, (a @ b).sum(axis=0), 60 * 31)


def test_a_device_gives_the_same_bits_every_time(device: KernelDevice) -> None:
    a, b = random((9, 50, 40), "f4", 1), random((9, 40, 30), "f4", 2)
    totals = [np.zeros((50, 30), "f4") for _ in range(3)]
    for total in totals:
        device.run("gemm_batch", [a, b], [total])
    assert totals[0].tobytes() == totals[1].tobytes() == totals[2].tobytes()


@pytest.mark.parametrize(
    ("shapes", "scalars", "message"),
    [
        ([(3, 4), (4, 6), (3, 6)], {}, r"expected a batch .* gemm multiplies single ones"),
        ([(3, 4), (2, 4, 6), (3, 6)], {}, r"as both if c is a single matrix"),
        ([(2, 3, 4), (3, 4, 6), (2, 3, 6)], {}, r"b has shape \(3, 4, 6\), expected \(2, 4, 6\)"),
        ([(2, 3, 4), (5, 6), (2, 3, 6)], {}, r"b has shape \(5, 6\), expected \(4, 6\)"),
        ([(2, 3, 4), (4, 6), (2, 6, 3)], {}, r"c has shape \(2, 6, 3\), expected \(2, 3, 6\)"),
        ([(2, 3, 4), (4, 6), (2, 3, 6)], {"transpose_a": True}, r"b has shape \(4, 6\), expected \(3, 6\)"),
        ([(2, 3, 4), (4,), (2, 3, 6)], {}, r"b has shape \(4,\), expected \(rows, columns\)"),
    ],
)
def test_batches_that_do_not_fit_are_named(
    device: KernelDevice, shapes: list[tuple[int, ...]], scalars: dict[str, bool], message: str
) -> None:
    *inputs, output = [np.zeros(shape, "f4") for shape in shapes]
    with pytest.raises(LaunchError, match=message):
        device.run("gemm_batch", inputs, [output], **scalars)


def test_products_cannot_be_written_over_their_factors(device: KernelDevice) -> None:
    a = np.zeros((2, 3, 3), "f4")
    with pytest.raises(LaunchError, match="must not share memory with"):
        device.run("gemm_batch", [a, np.zeros((3, 3), "f4")], [a])
