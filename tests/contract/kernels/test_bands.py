"""hotspot_steps, pathfinder_rows, gaussian_pivots and gaussian_update: several steps on a part of the data."""

from __future__ import annotations

import numpy as np
import pytest

from polymux.device.protocol import LaunchError
from tests.contract.kernels.kernel_device import KernelDevice
from tests.contract.kernels.test_simulations import CONSTANTS, hotspot

Array = np.ndarray


def hotspot_after(t: Array, p: Array, steps: int) -> Array:
    for _ in range(steps):
        t = hotspot(t, p, CONSTANTS)
    return t


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize(
    ("shape", "steps"),
    [((40, 30), 1), ((40, 30), 2), ((200, 1500), 8), ((9, 9), 8), ((3, 1), 3), ((1, 40), 64), ((0, 5), 2)],
)
def test_steps_of_hotspot_are_those_of_the_stencil(
    device: KernelDevice, shape: tuple[int, int], steps: int, dtype: str
) -> None:
    random = np.random.default_rng(0)
    t, p = (80 + random.random(shape)).astype(dtype), random.random(shape).astype(dtype)
    none, edge = np.empty((0, shape[1]), dtype), min(shape[0], 5)
    out, top, bottom = (np.full((rows, shape[1]), np.nan, dtype) for rows in (shape[0], edge, edge))
    margins = [none.copy() for _ in range(4)]
    device.run("hotspot_steps", [t, p, *margins], [out, top, bottom], steps=steps, **CONSTANTS)
    expected = hotspot_after(t, p, steps)
    assert out.tobytes() == expected.tobytes()
    assert top.tobytes() == expected[:edge].tobytes()
    assert bottom.tobytes() == expected[shape[0] - edge :].tobytes()


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize(("columns", "steps"), [(50, 1), (50, 6), (1200, 3)])
@pytest.mark.parametrize(("first", "last"), [(0, 12), (12, 30), (30, 44)])
def test_a_band_with_margins_is_a_part_of_the_whole(
    device: KernelDevice, columns: int, steps: int, first: int, last: int, dtype: str
) -> None:
    random = np.random.default_rng(1)
    t, p = ((80 + random.random((44, columns))).astype(dtype) for _ in range(2))
    cuts = [slice(first, last), slice(max(0, first - 7), first), slice(last, last + 7)]
    band, above, below = (t[cut].copy() for cut in cuts)
    power = [p[cut].copy() for cut in cuts]
    out, none = np.full_like(band, np.nan), np.empty((0, columns), dtype)
    device.run(
        "hotspot_steps",
        [band, power[0], above, below, power[1], power[2]],
        [out, none, none.copy()],
        steps=steps,
        **CONSTANTS,
    )
    assert out.tobytes() == hotspot_after(t, p, steps)[first:last].tobytes()


def path(wall: Array, cost: Array, row: int, rows: int) -> Array:
    for line in wall[row : row + rows]:
        wide = np.pad(cost, 1, mode="edge")
        cost = line + np.minimum(np.minimum(wide[:-2], wide[1:-1]), wide[2:])
    return cost


@pytest.mark.parametrize(
    ("shape", "row", "rows"),
    [
        ((50, 3000), 0, 50),
        ((40, 10), 0, 40),
        ((70, 5000), 3, 64),
        ((5, 1), 1, 3),
        ((5, 300), 5, 0),
        ((4, 0), 0, 4),
    ],
)
def test_ways_through_a_grid_cost_what_dynamic_programming_says(
    device: KernelDevice, shape: tuple[int, int], row: int, rows: int
) -> None:
    random = np.random.default_rng(2)
    wall, cost = (random.integers(-9, 10, size, np.int32) for size in (shape, shape[1]))
    edge = min(shape[1], 7)
    out, left, right = (np.full(size, -1, np.int32) for size in (shape[1], edge, edge))
    none = np.empty(0, np.int32)
    device.run("pathfinder_rows", [wall, cost, none, none.copy()], [out, left, right], row=row, rows=rows)
    expected = path(wall, cost, row, rows) if shape[1] else cost
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(left, expected[:edge])
    np.testing.assert_array_equal(right, expected[shape[1] - edge :])


@pytest.mark.parametrize("rows", [1, 20, 70])
@pytest.mark.parametrize(("first", "last"), [(0, 800), (800, 900), (1600, 2500)])
def test_a_band_of_a_grid_is_a_part_of_the_whole(
    device: KernelDevice, first: int, last: int, rows: int
) -> None:
    random = np.random.default_rng(3)
    wall, cost = (random.integers(0, 10, size, np.int32) for size in ((80, 2500), 2500))
    low, high, none = max(0, first - 75), last + 75, np.empty(0, np.int32)
    inputs = [part.copy() for part in (wall[:, low:high], cost[first:last], cost[low:first], cost[last:high])]
    out = np.full(last - first, -1, np.int32)
    device.run("pathfinder_rows", inputs, [out, none, none.copy()], row=2, rows=rows)
    np.testing.assert_array_equal(out, path(wall, cost, 2, rows)[first:last])


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize(
    ("n", "block", "columns"), [(100, 32, 101), (70, 64, 80), (33, 1, 40), (200, 64, 208)]
)
@pytest.mark.parametrize("in_place", [True, False])
def test_elimination_by_blocks_gives_the_bits_of_one_column_after_the_other(
    device: KernelDevice, n: int, block: int, columns: int, in_place: bool, dtype: str
) -> None:
    a = (np.random.default_rng(n).standard_normal((n, columns)) + n * np.eye(n, columns)).astype(dtype)
    expected = a.copy()
    for k in range(n - 1):
        multipliers = expected[k + 1 :, k] / expected[k, k]
        expected[k + 1 :, k + 1 :] -= multipliers[:, None] * expected[k, k + 1 :]
        expected[k + 1 :, k] = 0
    triangle = []
    for k in range(0, n, block):
        count = min(block, n - k)
        pivots = np.full((count, columns), np.nan, dtype)
        out = a if in_place else np.full_like(a, np.nan)
        device.run("gaussian_pivots", [a], [pivots], first=k, column=k)
        device.run("gaussian_update", [a, pivots], [out], first=k + count, column=k)
        assert out[: k + count].tobytes() == a[: k + count].tobytes()
        triangle.append(pivots)
        a = out
    assert np.concatenate(triangle).tobytes() == expected.tobytes()


@pytest.mark.parametrize("kernel", ["gaussian_pivots", "gaussian_update"])
def test_a_pivot_of_zero_is_an_error_or_shows_in_the_result_of_a_block(
    device: KernelDevice, kernel: str
) -> None:
    rows, pivots = np.ones((4, 4)), np.zeros((2, 4))
    rows[0, 0] = 0
    inputs, output = ([rows], pivots) if kernel == "gaussian_pivots" else ([rows, pivots], np.ones((4, 4)))
    if device.device.spec.api == "cpu":
        with pytest.raises(LaunchError, match="the pivot in column 0 is 0: this elimination does not pivot"):
            device.run(kernel, inputs, [output], first=0, column=0)
    else:
        device.run(kernel, inputs, [output], first=0, column=0)
        assert not np.isfinite(output).all()


@pytest.mark.parametrize(
    ("kernel", "shapes", "scalars", "message"),
    [
        ("gaussian_pivots", [(4, 6), (65, 6)], {}, r"pivots has shape \(65, 6\), expected 1 to 64 rows of 6"),
        ("gaussian_pivots", [(4, 6), (2, 5)], {}, r"pivots has shape \(2, 5\)"),
        ("gaussian_pivots", [(4, 6), (2, 6)], {"first": 3}, "first is 3, expected 0 to 2 for 2 pivots"),
        ("gaussian_pivots", [(4, 6), (2, 6)], {"column": 5}, "column is 5, expected 0 to 4 for 2 pivots"),
        ("gaussian_update", [(4, 6), (2, 6), (4, 6)], {"first": 5}, "first is 5, expected 0 to 4"),
        ("gaussian_update", [(4, 6), (2, 6), (4, 6)], {"column": -1}, "column is -1"),
        ("gaussian_update", [(4, 6), (2, 6), (3, 6)], {}, r"rows_out has shape \(3, 6\), expected \(4, 6\)"),
    ],
)
def test_blocks_that_do_not_fit_are_named(
    device: KernelDevice, kernel: str, shapes: list[tuple[int, ...]], scalars: dict[str, int], message: str
) -> None:
    arrays = [np.ones(shape) for shape in shapes]
    with pytest.raises(LaunchError, match=message):
        device.run(kernel, arrays[:-1], arrays[-1:], **({"first": 0, "column": 0} | scalars))


@pytest.mark.parametrize(
    ("name", "shape", "steps", "message"),
    [
        ("above", (2, 5), 3, r"above has shape \(2, 5\), expected 0 rows \(an edge\) or at least 3"),
        ("power_below", (3, 5), 3, r"power_below has shape \(3, 5\), expected \(0, 5\)"),
        ("power", (8, 4), 3, r"power has shape \(8, 4\), expected \(8, 5\)"),
        ("top_out", (9, 5), 3, r"top_out has shape \(9, 5\), expected at most 8 rows of 5 columns"),
        ("temperature_out", (8, 6), 3, r"temperature_out has shape \(8, 6\), expected \(8, 5\)"),
        ("above", (0, 5), 0, "steps is 0, expected 1 to 64"),
        ("above", (0, 5), 65, "steps is 65"),
    ],
)
def test_bands_of_hotspot_that_do_not_fit_are_named(
    device: KernelDevice, name: str, shape: tuple[int, int], steps: int, message: str
) -> None:
    shapes = dict.fromkeys(("temperature", "power"), (8, 5))
    shapes |= dict.fromkeys(("above", "below", "power_above", "power_below"), (0, 5))
    shapes |= {"temperature_out": (8, 5), "top_out": (2, 5), "bottom_out": (2, 5)}
    arrays = [np.ones(s) for s in (shapes | {name: shape}).values()]
    with pytest.raises(LaunchError, match=message):
        device.run("hotspot_steps", arrays[:6], arrays[6:], steps=steps, **CONSTANTS)


@pytest.mark.parametrize(
    ("name", "shape", "scalars", "message"),
    [
        ("wall", (5, 8), {}, r"wall has shape \(5, 8\), expected 9 columns"),
        ("left", (2,), {}, "left has 2 elements, expected 0|expected 11 columns"),
        ("cost_out", (8,), {}, r"cost_out has shape \(8,\), expected \(9,\)"),
        ("right_out", (10,), {}, "right_out has 10 elements, expected at most 9"),
        ("wall", (5, 9), {"row": 3}, "row is 3 and rows is 3; expected rows of the 5 that the wall has"),
        ("wall", (5, 9), {"rows": -1}, "row is 0 and rows is -1"),
        ("wall", (1100, 9), {"rows": 1025}, "at most 1024"),
    ],
)
def test_bands_of_a_grid_that_do_not_fit_are_named(
    device: KernelDevice, name: str, shape: tuple[int, ...], scalars: dict[str, int], message: str
) -> None:
    shapes: dict[str, tuple[int, ...]] = {"wall": (5, 9), "cost": (9,), "left": (0,), "right": (0,)}
    shapes |= {"cost_out": (9,), "left_out": (2,), "right_out": (2,)}
    arrays = [np.ones(s, np.int32) for s in (shapes | {name: shape}).values()]
    with pytest.raises(LaunchError, match=message):
        device.run("pathfinder_rows", arrays[:4], arrays[4:], **({"row": 0, "rows": 3} | scalars))
