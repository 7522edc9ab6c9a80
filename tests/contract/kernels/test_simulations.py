"""stencil (hotspot) and gaussian_step."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import solve, solve_triangular

from polymux.device.protocol import LaunchError
from polymux.kernel.builtin.stencil import hotspot_constants
from tests.contract.kernels.kernel_device import KernelDevice

CONSTANTS = {"step": 0.01, "capacity": 0.7, "rx": 1.3, "ry": 2.9, "rz": 4.1, "ambient": 80.0}


def hotspot(t: np.ndarray, p: np.ndarray, c: dict[str, float]) -> np.ndarray:
    """One step with NumPy, rounded in the order of the formula."""
    number = t.dtype.type
    up, down = np.concatenate([t[:1], t[:-1]]), np.concatenate([t[1:], t[-1:]])
    left, right = np.hstack([t[:, :1], t[:, :-1]]), np.hstack([t[:, 1:], t[:, -1:]])
    twice = t + t
    vertical = (up + down - twice) * number(1 / c["ry"])
    horizontal = (left + right - twice) * number(1 / c["rx"])
    sink = (number(c["ambient"]) - t) * number(1 / c["rz"])
    return np.asarray(t + number(c["step"] / c["capacity"]) * (p + vertical + horizontal + sink))


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize(
    "shape", [(1, 1), (1, 9), (9, 1), (2, 2), (3, 3), (64, 64), (67, 129), (0, 5), (5, 0)]
)
def test_stencil_gives_the_bits_of_the_formula(
    device: KernelDevice, shape: tuple[int, int], dtype: str
) -> None:
    random = np.random.default_rng(0)
    t, p = (80 + random.random(shape)).astype(dtype), random.random(shape).astype(dtype)
    out = np.full(shape, np.nan, dtype)
    device.run("stencil", [t, p], [out], **CONSTANTS)
    assert out.tobytes() == hotspot(t, p, CONSTANTS).tobytes()


def test_many_steps_of_hotspot_reach_the_steady_state(device: KernelDevice) -> None:
    """Without power everything ends at the ambient temperature; with it the heat sink carries away what comes in."""
    constants = hotspot_constants(8, 8)
    t, p = np.full((8, 8), 85.0), np.zeros((8, 8))
    p[3, 4] = 0.5
    other = np.empty_like(t)
    constants["step"] = 1e-3  # s; stable up to 2.9e-3, and half a time constant
    for _ in range(100):
        device.run("stencil", [t, p], [other], **constants)
        t, other = other, t
    assert np.sum((t - constants["ambient"]) / constants["rz"]) == pytest.approx(p.sum(), rel=1e-6)
    assert t.argmax() == 3 * 8 + 4


def test_the_constants_are_those_of_rodinia() -> None:
    constants = hotspot_constants(512, 512)
    assert constants["capacity"] == pytest.approx(0.5 * 1.75e6 * 0.0005 * (0.016 / 512) ** 2)
    assert constants["rx"] == constants["ry"] == pytest.approx(1 / (2 * 100 * 0.0005))
    assert constants["step"] == pytest.approx(0.001 / (3.0e6 / (0.5 * 0.0005 * 1.75e6)))


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("n", [1, 2, 17, 65])
@pytest.mark.parametrize("width", [None, 1, 3])
@pytest.mark.parametrize("in_place", [True, False])
def test_gaussian_steps_solve_a_system(
    device: KernelDevice, n: int, width: int | None, in_place: bool, dtype: str
) -> None:
    random = np.random.default_rng(n)
    a0 = (random.standard_normal((n, n)) + n * np.eye(n)).astype(dtype)
    b0 = random.standard_normal((n,) if width is None else (n, width)).astype(dtype)
    a, b = a0.copy(), b0.copy()
    for k in range(n):
        a_out, b_out = (a, b) if in_place else (np.full_like(a, np.nan), np.full_like(b, np.nan))
        expected_a, expected_b = eliminated(a, b, k)
        device.run("gaussian_step", [a, b], [a_out, b_out], k=k)
        assert a_out.tobytes() == expected_a.tobytes()
        assert b_out.tobytes() == expected_b.tobytes()
        a, b = a_out, b_out
    assert (np.tril(a, -1) == 0).all()
    x = solve_triangular(a.astype("f8"), b.astype("f8"))
    np.testing.assert_allclose(
        x, solve(a0.astype("f8"), b0.astype("f8")), rtol=0, atol=1e-5 if dtype == "f4" else 1e-13
    )


def eliminated(a: np.ndarray, b: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Step k by its definition, each operation rounded."""
    a, b = a.copy(), b.copy()
    multipliers = a[k + 1 :, k] / a[k, k]
    a[k + 1 :, k + 1 :] -= multipliers[:, None] * a[k, k + 1 :]
    a[k + 1 :, k] = 0
    b[k + 1 :] -= (multipliers if b.ndim == 1 else multipliers[:, None]) * b[k]
    return a, b


def test_gaussian_step_without_right_hand_sides(device: KernelDevice) -> None:
    a = np.array([[2.0, 1.0], [4.0, 5.0]])
    out, b = np.zeros_like(a), np.zeros((2, 0))
    device.run("gaussian_step", [a, b], [out, np.zeros((2, 0))], k=0)
    assert (out == [[2, 1], [0, 3]]).all()


def test_a_pivot_of_zero_is_an_error_or_shows_in_the_result(device: KernelDevice) -> None:
    a, b = np.array([[0.0, 1.0], [1.0, 1.0]]), np.ones(2)
    if device.device.spec.api == "cpu":
        with pytest.raises(LaunchError, match=r"a\[0, 0\] is 0: this elimination does not pivot"):
            device.run("gaussian_step", [a, b], [a, b], k=0)
        assert (a == [[0, 1], [1, 1]]).all()
    else:
        device.run("gaussian_step", [a, b], [a, b], k=0)
        assert not np.isfinite(a).all()


@pytest.mark.parametrize(
    ("shapes", "k", "message"),
    [
        ([(3, 4), (3,), (3, 4), (3,)], 0, r"a has shape \(3, 4\), expected \(3, 3\)"),
        ([(3,), (3,), (3,), (3,)], 0, r"a has shape \(3,\), expected 2 dimensions"),
        ([(3, 3), (4,), (3, 3), (4,)], 0, r"b has shape \(4,\), expected \(3,\) or \(3, right-hand sides\)"),
        ([(3, 3), (3, 1, 1), (3, 3), (3, 1, 1)], 0, r"b has shape"),
        ([(3, 3), (3,), (3, 2), (3,)], 0, r"a_out has shape \(3, 2\), expected \(3, 3\)"),
        ([(3, 3), (3,), (3, 3), (3, 1)], 0, r"b_out has shape \(3, 1\), expected \(3,\)"),
        ([(3, 3), (3,), (3, 3), (3,)], 3, r"k is 3, expected 0 to 2"),
        ([(3, 3), (3,), (3, 3), (3,)], -1, r"k is -1"),
    ],
)
def test_systems_that_do_not_fit_are_named(
    device: KernelDevice, shapes: list[tuple[int, ...]], k: int, message: str
) -> None:
    arrays = [np.ones(shape) for shape in shapes]
    with pytest.raises(LaunchError, match=message):
        device.run("gaussian_step", arrays[:2], arrays[2:], k=k)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [("capacity", 0.0, "capacity is 0"), ("rx", -1.0, "rx is -1"), ("rz", float("nan"), "rz is -?nan")],
)
def test_impossible_constants_are_named(device: KernelDevice, name: str, value: float, message: str) -> None:
    t = np.ones((3, 3))
    with pytest.raises(LaunchError, match=message):
        device.run("stencil", [t, t.copy()], [t.copy()], **(CONSTANTS | {name: value}))


def test_a_stencil_cannot_be_computed_in_place(device: KernelDevice) -> None:
    t = np.ones((3, 3))
    with pytest.raises(LaunchError, match="temperature_out must not share memory with temperature"):
        device.run("stencil", [t, t.copy()], [t], **CONSTANTS)
