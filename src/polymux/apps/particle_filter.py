"""particle-filter: follows a moving object through noisy images.

References
----------
N. J. Gordon, D. J. Salmond, A. F. M. Smith, "Novel approach to nonlinear/non-Gaussian Bayesian state estimation", IEE
Proceedings F 140 (1993).
G. Kitagawa, "Monte Carlo filter and smoother for non-Gaussian nonlinear state space models", Journal of Computational
and Graphical Statistics 5 (1996).
S. Che et al., "Rodinia: a benchmark suite for heterogeneous computing", IISWC 2009.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from math import isqrt, sqrt
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from polymux.apps.application import Application, Arrays, WrongResult
from polymux.apps.bands import bands
from polymux.apps.lane import Lane
from polymux.apps.scene import BACKGROUND, NOISE, OBJECT, RADIUS, disk, images_of, path_of
from polymux.core.errors import InvalidRequest
from polymux.kernel.builtin.particle_resample import first_at
from polymux.kernel.builtin.reduce import Operation

FRAMES = 32
LARGEST_SIDE = 256
REFERENCE_PARTICLES = 200_000
BEGIN = {"position_noise": 8.0, "velocity_noise": 3.0}
"""What is known of the object before the first image: about where it is, and how fast such an object is."""
MOTION = {"position_noise": 0.5, "velocity_noise": 0.5}
_BYTES_PER_PARTICLE = 2 * 4 * 4 + 4 + 8
_PIXELS = float(disk().sum())
# The likelihood ratio of object and background, for the mean over the disk as in Rodinia.
WEIGHT = {
    "gain": (OBJECT - BACKGROUND) / NOISE**2 / _PIXELS,
    "level": (OBJECT + BACKGROUND) / 2 * _PIXELS,
}


class ParticleFilter(Application):
    """A bootstrap filter: particles are moved, weighed by each image, and drawn again by their weights.

    Parameters
    ----------
    particles : int
    side : int, pixels
        Of the square images.
    frames : int
        Images.
    seed : int
        Of the images and of the filter.
    """

    name = "particle-filter"
    title = "following an object through noisy images, sequential Monte Carlo"
    kernels = (
        *("fill", "conv2d", "reduce"),
        *("particle_predict", "particle_cumulate", "particle_resample"),
    )

    def __init__(self, particles: int, side: int = LARGEST_SIDE, frames: int = FRAMES, seed: int = 0) -> None:
        if particles < 1 or frames < 1:
            raise InvalidRequest(
                f"there are {particles} particles and {frames} images; give 1 or more of each"
            )
        if side < 4 * RADIUS:
            raise InvalidRequest(f"side is {side}; give images of {4 * RADIUS} pixels or more")
        self.particles, self.seed = particles, seed
        self.truth = path_of(frames, side)
        random = np.random.default_rng(seed)
        self.phases = random.integers(0, 1 << 32, frames).tolist()
        images = images_of(self.truth, side, random)
        self.inputs = {f"image {i}": image[None, None] for i, image in enumerate(images)}
        self.nbytes = images.nbytes + 2 * images[0].nbytes + particles * _BYTES_PER_PARTICLE

    @classmethod
    def of_size(cls, nbytes: int, seed: int = 0) -> Self:
        """Make one whose particles and images take about `nbytes`; the images a quarter at most, if that is enough."""
        side = max(4 * RADIUS, min(LARGEST_SIDE, isqrt(nbytes // (4 * 4 * FRAMES))))
        rest = nbytes - (FRAMES + 2) * side * side * 4
        return cls(max(1000, rest // _BYTES_PER_PARTICLE), side, seed=seed)

    def run(self, lanes: Sequence[Lane]) -> Arrays:
        """Follow the object.

        Each lane has a part of the particles. Where there are several, they wait twice for each image: for the largest
        weight of all, and for their sum. New particles stay in the lane of the old ones from which they are drawn, and
        all have the random numbers of their place among all: the particles do not depend on the number of lanes.

        Returns
        -------
        dict of str to ndarray
            ``path``: (frames, 2) estimated x and y in each image, in pixels.
        """
        parts = [
            _Part(lane, first, last - first)
            for lane, (first, last) in zip(lanes, bands(self.particles, len(lanes)), strict=False)
        ]
        sums = []
        for frame, image in enumerate(self.images):
            used = [part for part in parts if part.count]
            brightness = _brightness(used[frame % len(used)].lane, image, wait=len(used) > 1)
            for part in used:
                numbers = BEGIN if frame == 0 else MOTION
                part.predict(brightness, seed=self.seed, stream=frame, **numbers, **WEIGHT)
            _share_peak(used)
            for part in used:
                part.cumulate()
            phase = self.phases[frame]
            if len(used) == 1:
                used[0].resample(self.particles, phase=phase)
            else:
                _divide(used, self.particles, phase)
            sums.append([(part.lane, part.sum()) for part in used if part.count])
        totals = np.array(
            [np.sum([lane.read(r) for lane, r in row], axis=0, dtype=np.float64) for row in sums]
        )
        return {"path": totals[:, :2] / self.particles + self.side / 2}

    @property
    def side(self) -> int:
        """Pixels along an edge of the images."""
        return int(self.images[0].shape[-1])

    @property
    def images(self) -> list[NDArray[Any]]:
        """The images, each of shape (1, 1, side, side)."""
        return list(self.inputs.values())

    def reference(self) -> Arrays:
        """Follow the object with NumPy and its random numbers: another sample of the same distributions."""
        return {"path": self._reference}

    def check(self, result: Mapping[str, NDArray[Any]]) -> None:
        """Compare with the reference: both estimates differ from the exact ones by their sampling error."""
        path, expected = result["path"], self._reference
        if path.shape != expected.shape:
            raise WrongResult(f"path has shape {path.shape}, expected {expected.shape}")
        error = np.nan_to_num(np.abs(path - expected), nan=np.inf)
        allowed = 120 / sqrt(min(self.particles, REFERENCE_PARTICLES))
        frame, axis = (int(i) for i in np.unravel_index(int(error.argmax()), error.shape))
        if error[frame, axis] > allowed:
            raise WrongResult(
                f"path[{frame}, {axis}] is {path[frame, axis]:.3f}, expected {expected[frame, axis]:.3f}: a difference"
                f" of {error[frame, axis]:.3f} pixels, allowed are {allowed:.3f}"
            )

    @cached_property
    def _reference(self) -> NDArray[Any]:
        random = np.random.default_rng([self.seed, 1])
        count = min(self.particles, REFERENCE_PARTICLES)
        state = np.zeros((4, count))
        path = []
        for frame, brightness in enumerate(self._brightness_with_numpy()):
            motion = BEGIN if frame == 0 else MOTION
            noise = random.standard_normal((4, count))
            state[:2] += state[2:] + motion["position_noise"] * noise[:2]
            state[2:] += motion["velocity_noise"] * noise[2:]
            x, y = np.clip(np.floor(state[:2] + self.side / 2), 0, self.side - 1).astype(np.int64)
            log_weights = WEIGHT["gain"] * (brightness[y, x] - WEIGHT["level"])
            cumulative = np.cumsum(np.exp(log_weights - log_weights.max()))
            comb = (np.arange(count) + random.random()) / count * cumulative[-1]
            state = state[:, np.minimum(np.searchsorted(cumulative, comb, side="right"), count - 1)]
            path.append(state[:2].mean(axis=1) + self.side / 2)
        return np.array(path)

    def _brightness_with_numpy(self) -> Iterator[NDArray[Any]]:
        for image in self.images:
            wide = np.pad(image[0, 0].astype(np.float64), RADIUS)
            shifts = np.argwhere(disk())
            yield sum(
                (wide[r : r + self.side, c : c + self.side] for r, c in shifts),
                np.zeros((self.side, self.side)),
            )


class _Part:
    """The particles that one lane has."""

    def __init__(self, lane: Lane, first: int, count: int) -> None:
        self.lane, self.first, self.count = lane, first, count
        self.now, self.other = (lane.empty((4, count), np.float32) for _ in range(2))
        self.log_weights, self.cumulative = lane.empty(count, np.float32), lane.empty(count, np.uint64)
        self.peak, self.total = lane.empty(1, np.float32), lane.empty(1, np.uint64)
        lane.submit("fill", [], [self.now], value=0.0)

    def predict(self, brightness: Any, **scalars: float) -> None:
        """Submit the move, the weighing and the search for the largest weight."""
        outputs = [self.other, self.log_weights]
        self.lane.submit("particle_predict", [self.now, brightness], outputs, first=self.first, **scalars)
        self.lane.submit("reduce", [self.log_weights], [self.peak], op=int(Operation.MAX))

    def cumulate(self) -> None:
        """Submit the sums of the weights."""
        self.lane.submit("particle_cumulate", [self.log_weights, self.peak], [self.cumulative, self.total])

    def resample(self, count: int, first: int = 0, last: int | None = None, **scalars: int) -> None:
        """Submit the drawing of the new particles `first` to `last` of `count`."""
        new = (count if last is None else last) - first
        if new != self.count:
            self.now = self.lane.empty((4, new), np.float32)
        if new:
            inputs = [self.other, self.cumulative]
            self.lane.submit("particle_resample", inputs, [self.now], first=first, count=count, **scalars)
        if new != self.count:
            self.other = self.lane.empty((4, new), np.float32)
            self.log_weights, self.cumulative = (
                self.lane.empty(new, np.float32),
                self.lane.empty(new, np.uint64),
            )
        self.first, self.count = first, new

    def sum(self) -> Any:
        """Submit the sums of the particles' coordinates; their buffer."""
        sums = self.lane.empty(4, np.float32)
        self.lane.submit("reduce", [self.now], [sums], axis=1)
        return sums


def _brightness(lane: Lane, image: NDArray[Any], *, wait: bool) -> Any:
    """Submit the sum over the disk around each pixel: whole numbers, the same on every device."""
    target = lane.empty(image.shape, np.float32)
    operands = [lane.input(image), lane.input(disk()[None, None])]
    lane.submit("conv2d", operands, [target], padding_h=RADIUS, padding_w=RADIUS)
    if wait:
        lane.wait()
    return target


def _share_peak(parts: Sequence[_Part]) -> None:
    """Give all parts the largest weight of all."""
    if len(parts) > 1:
        peak = np.max([part.lane.read(part.peak) for part in parts], axis=0)
        for part in parts:
            part.peak = part.lane.array(peak)


def _divide(parts: Sequence[_Part], count: int, phase: int) -> None:
    """Submit the drawing of all parts' new particles, each those that come from its own."""
    totals = [int(part.lane.read(part.total)[0]) for part in parts]
    total = sum(totals)
    before = [sum(totals[:index]) for index in range(len(parts) + 1)]
    firsts = [first_at(total, count, phase, weight) for weight in before]
    for part, weight, (first, last) in zip(parts, before, pairwise(firsts), strict=False):
        part.resample(count, first, last, phase=phase, before=weight, total=total)
