"""coexec_gemm and coexec_conv2d: parts of results by every method of every device, against NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from polymux.core.status import TaskStatus
from polymux.device.protocol import LaunchError
from polymux.kernel.chunks.methods import METHODS, Method
from polymux.kernel.chunks.packed import TILES
from tests.contract.kernels.conftest import opened
from tests.contract.kernels.kernel_device import REQUESTS, KernelDevice
from tests.contract.kernels.test_images import STEPS, convolved, random

FEW = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
LANES = [
    (request, method)
    for request in (*REQUESTS, "cuda")
    for method in METHODS
    if method.precision == "own" and method.api == request.partition(":")[0] and method.package != "torch"
]
"""Every device with every method that it may have; PyTorch is in tests/training."""


@dataclass(frozen=True)
class Lane:
    """A device and the number of a method."""

    device: KernelDevice
    method: Method

    def run(self, kernel: str, *arrays: Any, **scalars: Any) -> None:
        self.device.run(kernel, *arrays, method=self.method.number, **scalars)


@pytest.fixture(scope="module", params=LANES, ids=lambda lane: f"{lane[0]}-{lane[1].name}")
def lane(request: pytest.FixtureRequest) -> Iterator[Lane]:
    name, method = request.param
    if method.missing:
        pytest.skip(f"{method.missing} is missing")
    with opened(name) as device:
        yield Lane(device, method)


def close(result: np.ndarray, expected: np.ndarray, bound: np.ndarray) -> None:
    """Within what rounding of sums can do: `bound` is the same computed from absolute values."""
    eps = np.finfo(result.dtype).eps
    assert (np.abs(result.astype("f8") - expected) <= 64 * eps * bound + eps).all()


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize(
    ("m", "n", "k"),
    [(1, 1, 1), (64, 64, 64), (65, 130, 33), (29, 257, 600), (400, 1, 7), (1, 90, 40), (5, 4, 0)],
)
def test_gemm_multiplies(lane: Lane, m: int, n: int, k: int, dtype: str) -> None:
    a, b = random((m, k), dtype, 1), random((k, n), dtype, 2)
    c = np.full((m, n), np.nan, dtype)
    lane.run("coexec_gemm", [a, b], [c])
    close(c, a.astype("f8") @ b.astype("f8"), np.abs(a).astype("f8") @ np.abs(b))


@FEW
@given(
    extents=st.tuples(st.integers(1, 90), st.integers(1, 140), st.integers(0, 70)),
    parts=st.tuples(*[st.floats(0, 1)] * 4),
    seed=st.integers(0, 100),
)
def test_gemm_writes_the_part_that_it_was_asked_for_and_nothing_else(
    lane: Lane,
    extents: tuple[int, int, int],
    parts: tuple[float, ...],
    seed: int,
) -> None:
    m, n, k = extents
    top, bottom = sorted(round(part * m) for part in parts[:2])
    left, right = sorted(round(part * n) for part in parts[2:])
    a, b = random((m, k), "f4", seed), random((k, n), "f4", seed + 1)
    c = np.full((m, n), 77, "f4")
    ranges = {"first": top, "count": bottom - top, "first_column": left, "columns": right - left}
    lane.run("coexec_gemm", [a, b], [c], **ranges)
    expected, bound = np.full((m, n), 77.0), np.zeros((m, n))
    expected[top:bottom, left:right] = (a.astype("f8") @ b)[top:bottom, left:right]
    bound[top:bottom, left:right] = (np.abs(a).astype("f8") @ np.abs(b))[top:bottom, left:right]
    close(c, expected, bound)


@pytest.mark.parametrize(("tile", "dtype"), [*((tile, "f4") for tile in range(len(TILES))), (0, "f8")])
def test_every_tile_of_opencl_computes_the_same(opencl_device: KernelDevice, tile: int, dtype: str) -> None:
    a, b = random((61, 530), dtype, 1), random((530, 75), dtype, 2)
    c = np.full((61, 75), np.nan, dtype)
    opencl_device.run("coexec_gemm", [a, b], [c], method=11, tile=tile)
    close(c, a.astype("f8") @ b.astype("f8"), np.abs(a).astype("f8") @ np.abs(b))
    x, weight = random((2, 5, 13, 11), dtype, 3), random((20, 5, 3, 3), dtype, 4)
    y = np.full((2, 20, 13, 11), np.nan, dtype)
    opencl_device.run("coexec_conv2d", [x, weight], [y], method=11, tile=tile, **STEPS[1])
    close(y, convolved(x, weight, 1, STEPS[1]), convolved(np.abs(x), np.abs(weight), 1, STEPS[1]))


def test_infinities_and_nan_arrive_as_in_numpy(lane: Lane) -> None:
    a, b = random((40, 50), "f4", 1), random((50, 60), "f4", 2)
    a[3, 7], a[5, 1], b[2, 9], b[4, 11] = np.nan, np.inf, -np.inf, 0
    c = np.zeros((40, 60), "f4")
    lane.run("coexec_gemm", [a, b], [c])
    with np.errstate(invalid="ignore"):
        expected = a @ b
    np.testing.assert_array_equal(np.isnan(c), np.isnan(expected))
    np.testing.assert_array_equal(np.isinf(c), np.isinf(expected))
    x, weight = random((1, 3, 9, 9), "f4", 3), random((20, 3, 3, 3), "f4", 4)
    x[0, 1, 4, 4], x[0, 2, 0, 0] = np.nan, np.inf
    y = np.zeros((1, 20, 7, 7), "f4")
    lane.run("coexec_conv2d", [x, weight], [y])
    np.testing.assert_array_equal(np.isfinite(y), np.isfinite(convolved(x, weight, 1, {})))


@pytest.mark.parametrize("dtype", ["u1", "i2", "i4", "i8", "f2", "c8", "c16", "b1"])
def test_a_cpu_multiplies_every_numpy_type(cpu_device: KernelDevice, dtype: str) -> None:
    a = np.random.default_rng(0).integers(0, 3, (9, 14)).astype(dtype)
    b = np.random.default_rng(1).integers(0, 3, (14, 8)).astype(dtype)
    c = np.zeros((9, 8), dtype)
    cpu_device.run("coexec_gemm", [a, b], [c])
    np.testing.assert_array_equal(c, a @ b)


@pytest.mark.parametrize("dtype", ["i4", "f2"])
def test_opencl_refuses_types_that_it_does_not_multiply(opencl_device: KernelDevice, dtype: str) -> None:
    arrays = [np.zeros((3, 3), dtype) for _ in range(3)]
    with pytest.raises(LaunchError, match="f4") as caught:
        opencl_device.run("coexec_gemm", arrays[:2], arrays[2:])
    assert caught.value.code is TaskStatus.BAD_ARGUMENT


@pytest.mark.parametrize(
    ("channels", "outputs", "groups", "dtype"),
    [(3, 4, 1, "f4"), (8, 8, 8, "f8"), (6, 40, 2, "f4"), (5, 70, 1, "f8")],
)
@pytest.mark.parametrize("kernel", [(1, 1), (2, 5)])
@pytest.mark.parametrize("scalars", STEPS)
def test_conv2d_correlates(
    lane: Lane,
    scalars: dict[str, int],
    kernel: tuple[int, int],
    channels: int,
    outputs: int,
    groups: int,
    dtype: str,
) -> None:
    if (lane.method.name, dtype) == ("onnxruntime", "f8"):
        pytest.skip("onnxruntime computes convolutions of float32 only")
    x = random((3, channels, 11, 14), dtype, 1)
    weight = random((outputs, channels // groups, *kernel), dtype, 2)
    expected = convolved(x.astype("f8"), weight.astype("f8"), groups, scalars)
    y = np.full(expected.shape, np.nan, dtype)
    lane.run("coexec_conv2d", [x, weight], [y], groups=groups, **scalars)
    close(y, expected, convolved(np.abs(x).astype("f8"), np.abs(weight), groups, scalars))


@FEW
@given(data=st.data())
def test_conv2d_writes_the_part_that_it_was_asked_for_and_nothing_else(
    lane: Lane, data: st.DataObject
) -> None:
    images, groups = data.draw(st.integers(1, 4)), data.draw(st.sampled_from([1, 2, 3]))
    per_group, size = data.draw(st.integers(1, 20)), data.draw(st.integers(3, 9))
    first, end = sorted(data.draw(st.tuples(*[st.integers(0, images)] * 2)))
    outputs = groups * per_group
    low, high = sorted(data.draw(st.tuples(*[st.integers(0, outputs)] * 2)))
    whole = low % per_group == 0 and high % per_group == 0
    assume(whole or low // per_group == (high - 1) // per_group)
    scalars = data.draw(st.sampled_from([STEPS[0], STEPS[1], {"stride_h": 2, "padding_w": 1}]))
    x, weight = random((images, 2 * groups, size, 9), "f4", 5), random((outputs, 2, 3, 3), "f4", 6)
    full = convolved(x.astype("f8"), weight.astype("f8"), groups, scalars)
    bounds = convolved(np.abs(x).astype("f8"), np.abs(weight), groups, scalars)
    y, expected, bound = np.full(full.shape, 77, "f4"), np.full(full.shape, 77.0), np.zeros(full.shape)
    expected[first:end, low:high], bound[first:end, low:high] = (
        full[first:end, low:high],
        bounds[first:end, low:high],
    )
    ranges = {"first": first, "count": end - first, "first_output": low, "output_count": high - low}
    lane.run("coexec_conv2d", [x, weight], [y], groups=groups, **ranges, **scalars)
    close(y, expected, bound)


def test_images_that_do_not_fit_the_caches_are_spread_a_few_at_a_time(opencl_device: KernelDevice) -> None:
    x, weight = random((5, 24, 230, 225), "f4", 1), random((3, 24, 3, 3), "f4", 2)
    y, whole = np.full((5, 3, 228, 223), np.nan, "f4"), np.zeros((5, 3, 228, 223), "f4")
    opencl_device.run("coexec_conv2d", [x, weight], [y], method=11)
    opencl_device.run("conv2d", [x, weight], [whole])
    np.testing.assert_allclose(y, whole, rtol=1e-4, atol=1e-3)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"first": 3, "count": 3}, "first is 3"),
    ({"first": -1}, "first is -1"),
    ({"count": -2}, "count -2"),
    ({"first_column": 7}, "first_column is 7"),
    ({"method": 99}, "method is 99"),
]


@pytest.mark.parametrize(("scalars", "said"), BAD)
def test_a_range_or_a_method_that_cannot_be_is_refused_with_its_value(
    device: KernelDevice, scalars: dict[str, Any], said: str
) -> None:
    a, b, c = random((5, 4), "f4"), random((4, 6), "f4"), np.zeros((5, 6), "f4")
    with pytest.raises(LaunchError, match=said) as caught:
        device.run("coexec_gemm", [a, b], [c], **scalars)
    assert caught.value.code is TaskStatus.BAD_ARGUMENT


@pytest.mark.parametrize(
    "shapes", [((5, 4), (3, 6), (5, 6)), ((5, 4), (4, 6), (5, 5)), ((5,), (4, 6), (5, 6))]
)
def test_shapes_that_do_not_match_are_refused(
    device: KernelDevice, shapes: tuple[tuple[int, ...], ...]
) -> None:
    arrays = [np.zeros(shape, "f4") for shape in shapes]
    with pytest.raises(LaunchError, match="has shape"):
        device.run("coexec_gemm", arrays[:2], arrays[2:])


def test_a_range_of_outputs_that_ends_within_a_group_is_refused(device: KernelDevice) -> None:
    x, weight, y = random((1, 4, 5, 5), "f4"), random((8, 2, 3, 3), "f4"), np.zeros((1, 8, 3, 3), "f4")
    with pytest.raises(LaunchError, match="within a group of 4"):
        device.run("coexec_conv2d", [x, weight], [y], groups=2, first_output=2, output_count=4)


def test_a_tile_that_there_is_not_is_refused(opencl_device: KernelDevice) -> None:
    a, b, c = random((5, 4), "f4"), random((4, 6), "f4"), np.zeros((5, 6), "f4")
    with pytest.raises(LaunchError, match="tile is 99"):
        opencl_device.run("coexec_gemm", [a, b], [c], method=11, tile=99)
