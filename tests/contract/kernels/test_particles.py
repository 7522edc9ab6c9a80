"""pair_forces against all pairs in NumPy, and the same bits on every device."""

from __future__ import annotations

import numpy as np
import pytest

from polymux.device.protocol import LaunchError
from tests.contract.kernels.kernel_device import KernelDevice

Array = np.ndarray


def particles(shape: tuple[int, int, int, int], dtype: str, seed: int = 0) -> Array:
    """Particles in boxes of edge 1."""
    random = np.random.default_rng(seed)
    made = random.random((*shape, 4))
    corner = np.stack(np.indices(shape[:3]), axis=-1)[..., ::-1]
    made[..., :3] += corner[:, :, :, None]
    made[..., 3] -= 0.3
    return made.astype(dtype)


def forces(p: Array, alpha: float) -> Array:
    """All pairs, and those left out whose boxes do not touch."""
    p = p.astype("f8")
    boxes = np.stack(np.indices(p.shape[:3]), axis=-1)
    box = np.broadcast_to(boxes[:, :, :, None], (*p.shape[:4], 3)).reshape(-1, 3)
    flat = p.reshape(-1, 4)
    d = flat[:, None, :3] - flat[None, :, :3]
    w = flat[None, :, 3] * np.exp(-(alpha**2) * (d**2).sum(-1))
    w = np.where((abs(box[:, None] - box[None]) <= 1).all(-1), w, 0)
    return np.concatenate([w.sum(1)[:, None], 2 * (w[..., None] * d).sum(1)], 1).reshape(p.shape)


SHAPES = [(1, 1, 1, 1), (2, 2, 2, 5), (3, 1, 4, 16), (1, 5, 2, 17), (4, 4, 3, 9), (1, 1, 2, 100)]


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("alpha", [0.5, 0.0, 3.0])
def test_forces_are_those_of_all_pairs_in_boxes_that_touch(
    device: KernelDevice, shape: tuple[int, int, int, int], alpha: float, dtype: str
) -> None:
    p = particles(shape, dtype)
    out = np.full_like(p, np.nan)
    device.run("pair_forces", [p], [out], alpha=alpha)
    expected = forces(p, alpha)
    scale = abs(expected).max()
    np.testing.assert_allclose(out, expected, rtol=0, atol=scale * (3e-6 if dtype == "f4" else 1e-14))


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_forces_have_the_same_bits_on_every_device(
    device: KernelDevice, cpu_device: KernelDevice, dtype: str
) -> None:
    p = particles((3, 4, 5, 37), dtype)
    p[1, 2, 3, 4, :3] = [1e3, -4e3, 7e10]  # far away: exponents beyond the range
    results = [np.full_like(p, np.nan) for _ in range(2)]
    for where, out in zip((device, cpu_device), results, strict=True):
        where.run("pair_forces", [p], [out], alpha=2.5)
    assert results[0].tobytes() == results[1].tobytes()


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_exponentials_are_right_from_zero_to_underflow(device: KernelDevice, dtype: str) -> None:
    """One particle of charge 1 at the origin, and many without charge further and further away."""
    smallest = -87.0 if dtype == "f4" else -708.0
    p = np.zeros((1, 1, 1, 2001, 4), dtype)
    p[..., 0, 3] = 1
    p[0, 0, 0, 1:, 0] = np.sqrt(np.linspace(0, -smallest * 1.2, 2000))
    out = np.full_like(p, np.nan)
    device.run("pair_forces", [p], [out], alpha=1.0)
    exponent = -(p[0, 0, 0, :, 0] * p[0, 0, 0, :, 0])
    expected = np.where(exponent < smallest, 0, np.exp(exponent.astype("f8")))
    np.testing.assert_allclose(out[0, 0, 0, :, 0], expected, rtol=3e-7 if dtype == "f4" else 4e-16, atol=0)


@pytest.mark.parametrize(("first", "layers"), [(0, 1), (2, 2), (4, 1), (1, 4), (5, 0)])
def test_some_layers_of_forces_are_a_part_of_all(device: KernelDevice, first: int, layers: int) -> None:
    p = particles((5, 2, 3, 20), "f4")
    whole, part = np.zeros_like(p), np.full_like(p[:layers], np.nan)
    device.run("pair_forces", [p], [whole])
    device.run("pair_forces", [p], [part], first=first)
    assert part.tobytes() == whole[first : first + layers].tobytes()


def test_no_particles_have_no_forces(device: KernelDevice) -> None:
    for shape in ((0, 2, 2, 3, 4), (2, 0, 2, 3, 4), (2, 2, 2, 0, 4)):
        device.run("pair_forces", [np.zeros(shape)], [np.zeros(shape)])


@pytest.mark.parametrize(
    ("shape", "out", "scalars", "message"),
    [
        ((2, 2, 2, 3), (2, 2, 2, 3, 4), {}, r"particles has shape \(2, 2, 2, 3\), expected 5 dimensions"),
        ((2, 2, 2, 3, 4), (2, 2, 3, 4), {}, r"forces has shape \(2, 2, 3, 4\), expected 5 dimensions"),
        ((2, 2, 2, 3, 5), (2, 2, 2, 3, 4), {}, r"particles has shape .* expected \(2, 2, 2, 3, 4\)"),
        ((2, 2, 2, 3, 4), (2, 2, 2, 4, 4), {}, r"forces has shape .* expected \(2, 2, 2, 3, 4\)"),
        ((2, 2, 2, 3, 4), (2, 2, 2, 3, 4), {"first": 1}, "first is 1, expected 0 to 0"),
        ((2, 2, 2, 3, 4), (1, 2, 2, 3, 4), {"first": -1}, "first is -1, expected 0 to 1"),
        ((2, 2, 2, 3, 4), (2, 2, 2, 3, 4), {"alpha": float("nan")}, "alpha is -?nan"),
        ((2, 2, 2, 3, 4), (2, 2, 2, 3, 4), {"alpha": 1e16}, "alpha is 1"),
    ],
)
def test_boxes_that_do_not_fit_are_named(
    device: KernelDevice, shape: tuple[int, ...], out: tuple[int, ...], scalars: dict, message: str
) -> None:
    with pytest.raises(LaunchError, match=message):
        device.run("pair_forces", [np.ones(shape)], [np.ones(out)], **scalars)
    with pytest.raises(LaunchError, match="forces has dtype f4, expected f8"):
        device.run("pair_forces", [np.ones((1, 1, 1, 1, 4))], [np.ones((1, 1, 1, 1, 4), "f4")])
