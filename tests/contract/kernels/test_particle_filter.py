"""particle_predict, particle_cumulate and particle_resample against NumPy, bit by bit on every device."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from polymux.device.protocol import LaunchError
from polymux.kernel.builtin.particle_resample import positions
from tests.contract.kernels.kernel_device import KernelDevice
from tests.contract.kernels.philox_reference import normal

Array = np.ndarray
MOTION = {"position_noise": 0.5, "velocity_noise": 0.25, "gain": 0.75, "level": 20.0}


def swarm(n: int, seed: int = 0) -> Array:
    random = np.random.default_rng(seed)
    return (random.standard_normal((4, n)) * [[9], [9], [2], [2]]).astype("f4")


def predicted(p: Array, image: Array, seed: int, stream: int, first: int) -> tuple[Array, Array]:
    n, f4 = p.shape[1], np.float32
    noise = normal(4 * n, "f4", seed, stream, 4 * first).reshape(n, 4).T
    moved = np.concatenate(
        [
            p[:2] + p[2:] + f4(MOTION["position_noise"]) * noise[:2],
            p[2:] + f4(MOTION["velocity_noise"]) * noise[2:],
        ]
    )
    height, width = image.shape[-2:]
    column = np.clip(moved[0] + f4(0.5) * f4(width), 0, width - 1).astype("i8")
    row = np.clip(moved[1] + f4(0.5) * f4(height), 0, height - 1).astype("i8")
    return moved, f4(MOTION["gain"]) * (image.reshape(height, width)[row, column] - f4(MOTION["level"]))


@pytest.mark.parametrize(
    ("n", "first", "stream"), [(1, 0, 0), (16, 5, 1), (1000, 2**40, 7), (150_001, 3, 2**50)]
)
@pytest.mark.parametrize("shape", [(20, 31), (1, 1, 17, 8), (1, 1)])
def test_particles_move_with_the_bits_of_the_formula(
    device: KernelDevice, n: int, first: int, stream: int, shape: tuple[int, ...]
) -> None:
    p, image = swarm(n), np.random.default_rng(1).random(shape, np.float32) * 40
    out, weights = np.full_like(p, np.nan), np.full(n, np.nan, "f4")
    device.run("particle_predict", [p, image], [out, weights], seed=11, stream=stream, first=first, **MOTION)
    moved, log_weights = predicted(p, image, 11, stream, first)
    assert out.tobytes() == moved.tobytes()
    assert weights.tobytes() == log_weights.tobytes()


def test_particles_that_are_nowhere_are_weighed_at_the_edge(device: KernelDevice) -> None:
    p, image = np.zeros((4, 4), "f4"), np.arange(6, dtype="f4").reshape(2, 3)
    p[:2] = [[np.inf, -np.inf, np.nan, 1e30], [np.inf, -1e30, np.nan, -5]]
    out, weights = np.empty_like(p), np.empty(4, "f4")
    device.run(
        "particle_predict",
        [p, image],
        [out, weights],
        seed=1,
        position_noise=0,
        velocity_noise=0,
        gain=1,
        level=0,
    )
    assert weights.tolist() == [5, 0, 0, 2]


def weights_of(log_weights: Array, peak: float) -> Array:
    difference = np.minimum(log_weights.astype("f8") - peak, 0)
    return np.where(difference < -87, 0, np.exp(difference)) * 2.0**30


@pytest.mark.parametrize("n", [0, 1, 255, 257, 5000, 300_001])
def test_running_sums_are_those_of_the_weights(
    device: KernelDevice, cpu_device: KernelDevice, n: int
) -> None:
    log_weights = (np.random.default_rng(n).standard_normal(n) * 20).astype("f4")
    peak = np.array([log_weights.max() if n else 0], "f4")
    results = []
    for where in (device, cpu_device):
        cumulative, total = np.full(n, 7, "u8"), np.full(1, 7, "u8")
        where.run("particle_cumulate", [log_weights, peak], [cumulative, total])
        assert total[0] == (cumulative[-1] if n else 0)
        results.append(cumulative.tobytes())
    assert results[0] == results[1]
    weights = np.diff(cumulative.astype("i8"), prepend=0)
    np.testing.assert_allclose(weights, weights_of(log_weights, float(peak[0])), rtol=2e-7, atol=1)
    if n:
        assert weights.max() == 2**30


def test_weights_beyond_the_peak_count_as_the_peak_and_what_is_no_number_as_nothing(
    device: KernelDevice,
) -> None:
    log_weights = np.array([5, np.nan, np.inf, -np.inf, 1, 1 - 87.5], "f4")
    cumulative, total = np.zeros(6, "u8"), np.zeros(1, "u8")
    device.run("particle_cumulate", [log_weights, np.ones(1, "f4")], [cumulative, total])
    assert np.diff(cumulative, prepend=np.uint64(0)).tolist() == [2**30, 0, 2**30, 0, 2**30, 0]


def drawn(cumulative: Array, count: int, phase: int) -> list[int]:
    """Systematic resampling by its definition."""
    total = int(cumulative[-1])
    return [
        int(np.searchsorted(cumulative, np.uint64(positions(total, count, phase, i)), side="right"))
        for i in range(count)
    ]


def cumulated(n: int, seed: int, zeros: float = 0.3) -> Array:
    random = np.random.default_rng(seed)
    weights = random.integers(0, 2**30, n, np.uint64)
    weights[random.random(n) < zeros] = 0
    weights[n // 2] = 2**30
    return np.cumsum(weights, dtype="u8")


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 50), (50, 1), (1000, 1000), (300, 7000), (70_000, 3000)])
@pytest.mark.parametrize("phase", [0, 1 << 31, 2**32 - 1])
def test_particles_are_drawn_as_the_definition_says(
    device: KernelDevice, n: int, m: int, phase: int, dtype: str
) -> None:
    p = np.random.default_rng(0).standard_normal((3, n)).astype(dtype)
    cumulative, out = cumulated(n, n), np.full((3, m), np.nan, dtype)
    device.run("particle_resample", [p, cumulative], [out], phase=phase)
    assert out.tobytes() == p[:, drawn(cumulative, m, phase)].tobytes()


def test_each_particle_is_drawn_as_often_as_its_share_says(device: KernelDevice) -> None:
    n = m = 20_000
    p, cumulative = np.arange(n, dtype="f8")[None], cumulated(n, 3, zeros=0.9)
    out = np.zeros((1, m))
    device.run("particle_resample", [p, cumulative], [out])
    times = np.bincount(out[0].astype("i8"), minlength=n)
    share = np.diff(cumulative.astype("f8"), prepend=0) / float(cumulative[-1]) * m
    assert (abs(times - share) < 1.001).all()


def test_parts_draw_together_what_all_particles_draw(device: KernelDevice) -> None:
    n, m, phase, cuts = 1000, 1500, 12345, (0, 300, 650, 1000)
    p, cumulative = swarm(n), cumulated(n, 4)
    whole = p[:, drawn(cumulative, m, phase)]
    total = int(cumulative[-1])
    parts, first = [], 0
    for begin, end in pairwise(cuts):
        before, after = (int(cumulative[cut - 1]) if cut else 0 for cut in (begin, end))
        last = first
        while last < m and positions(total, m, phase, last) < after:
            last += 1
        part = np.full((4, last - first), np.nan, "f4")
        device.run(
            "particle_resample",
            [p[:, begin:end].copy(), cumulative[begin:end] - np.uint64(before)],
            [part],
            phase=phase,
            first=first,
            count=m,
            before=before,
            total=total,
        )
        parts.append(part)
        first = last
    assert np.concatenate(parts, axis=1).tobytes() == whole.tobytes()


def test_positions_are_evenly_spaced_within_the_weights() -> None:
    for total, count in ((2**60 + 12345, 2**24 + 1), (7, 3), (5, 100), (2**30, 1)):
        for number in {0, min(1, count - 1), count // 2, count - 1}:
            exact = (number + Fraction(1, 2)) * Fraction(total, count)
            found = positions(total, count, 1 << 31, number)
            assert 0 <= found < total
            assert abs(found - exact) <= 2 + Fraction(1, 2) * count / total


def test_without_any_weight_there_is_nothing_to_draw(device: KernelDevice) -> None:
    p, out = swarm(500), np.zeros((4, 90), "f4")
    if device.device.spec.api == "cpu":
        with pytest.raises(LaunchError, match="all weights are 0"):
            device.run("particle_resample", [p, np.zeros(500, "u8")], [out])
    else:
        device.run("particle_resample", [p, np.zeros(500, "u8")], [out])
        assert (out == p[:, -1:]).all()


def test_sums_that_do_not_rise_do_not_lead_outside(device: KernelDevice) -> None:
    cumulative = np.random.default_rng(5).integers(0, 2**63, 999, np.uint64)
    out = np.full((4, 5000), np.nan, "f4")
    device.run("particle_resample", [swarm(999), cumulative], [out])
    assert np.isfinite(out).all()


def test_no_particles_are_fine_unless_some_are_to_be_drawn(device: KernelDevice) -> None:
    none, image = np.zeros((4, 0), "f4"), np.ones((3, 3), "f4")
    device.run("particle_predict", [none, image], [none.copy(), np.zeros(0, "f4")], seed=1, **MOTION)
    device.run("particle_resample", [none, np.zeros(0, "u8")], [none.copy()])
    with pytest.raises(LaunchError, match="there is none to draw 2 from"):
        device.run("particle_resample", [none, np.zeros(0, "u8")], [np.zeros((4, 2), "f4")])


RESAMPLE = {"particles": (4, 9), "cumulative": (9,), "particles_out": (4, 5)}
PREDICT = {"particles": (4, 9), "image": (5, 5), "particles_out": (4, 9), "log_weights": (9,)}
CUMULATE = {"log_weights": (9,), "peak": (1,), "cumulative": (9,), "total": (1,)}


@pytest.mark.parametrize(
    ("kernel", "changes", "scalars", "message"),
    [
        ("predict", {"particles": (3, 9)}, {}, r"particles has shape \(3, 9\), expected \(4, 9\)"),
        ("predict", {"image": (2, 5, 5)}, {}, r"image has shape \(2, 5, 5\), expected one image"),
        ("predict", {"image": (5,)}, {}, r"image has shape \(5,\), expected one image"),
        ("predict", {"image": (0, 5)}, {}, r"image has shape \(0, 5\)"),
        ("predict", {"particles_out": (4, 8)}, {}, r"particles_out has shape \(4, 8\), expected \(4, 9\)"),
        ("predict", {"log_weights": (8,)}, {}, r"log_weights has shape \(8,\), expected \(9,\)"),
        ("predict", {}, {"gain": float("inf")}, "gain is inf, expected a finite number"),
        ("cumulate", {"peak": (2,)}, {}, r"peak has shape \(2,\), expected \(1,\)"),
        ("cumulate", {"cumulative": (8,)}, {}, r"cumulative has shape \(8,\), expected \(9,\)"),
        ("cumulate", {"total": ()}, {}, r"total has shape \(\), expected \(1,\)"),
        ("cumulate", {"log_weights": (3, 3)}, {}, r"log_weights has shape \(3, 3\), expected 1 dimensions"),
        ("resample", {"cumulative": (8,)}, {}, r"cumulative has shape \(8,\), expected \(9,\)"),
        ("resample", {"particles_out": (3, 5)}, {}, r"particles_out has shape \(3, 5\), expected \(4, 5\)"),
        ("resample", {}, {"count": 4}, "first is 0 and count 4, expected room for 5"),
        ("resample", {}, {"first": 2**64 - 2, "count": 9}, "first is 18446744073709551614 and count 9"),
        ("resample", {}, {"count": 2**32}, "expected room for 5 among less than 2\\^32"),
        ("resample", {}, {"total": 2**63}, "total is 9223372036854775808, expected less than 2\\^63"),
    ],
)
def test_particles_that_do_not_fit_are_named(
    device: KernelDevice, kernel: str, changes: dict, scalars: dict, message: str
) -> None:
    shapes, split, given = {
        "predict": (PREDICT, 2, {"seed": 1, **MOTION}),
        "cumulate": (CUMULATE, 2, {}),
        "resample": (RESAMPLE, 2, {}),
    }[kernel]
    wholes = ("cumulative", "total") if kernel == "cumulate" else ("cumulative",)
    arrays = [np.ones(shape, "u8" if name in wholes else "f4") for name, shape in (shapes | changes).items()]
    with pytest.raises(LaunchError, match=message):
        device.run(f"particle_{kernel}", arrays[:split], arrays[split:], **(given | scalars))
