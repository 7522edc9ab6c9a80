"""lavamd: particles in boxes that feel those in the boxes around, the short-range part of molecular dynamics.

References
----------
L. G. Szafaryn, T. Gamblin, B. R. de Supinski, K. Skadron, "Experiences with achieving portability across heterogeneous
architectures", WOLFHPC 2011.
S. Che et al., "Rodinia: a benchmark suite for heterogeneous computing", IISWC 2009.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from polymux.apps.application import Application, Arrays, WrongResult, require_close
from polymux.apps.bands import bands
from polymux.apps.lane import Lane
from polymux.core.errors import InvalidRequest

PER_BOX = 100
WIDEST = 16
"""Boxes along two of the edges, at most: a layer of them is one task of about 30 ms on a core."""
CHECKED = 1000
"""Boxes whose forces are computed again, at most."""
ALPHA = 0.5


class LavaMD(Application):
    """Potential and force on each particle from all in its own and the 26 boxes around, in float32, by layers of boxes.

    Parameters
    ----------
    shape : tuple of int
        Boxes in z, y and x.
    per_box : int
        Particles in each box.
    seed : int
        Of positions and charges.
    """

    name = "lavamd"
    title = "forces between particles in neighbouring boxes, molecular dynamics"
    kernels = ("pair_forces",)

    def __init__(self, shape: tuple[int, int, int], per_box: int = PER_BOX, seed: int = 0) -> None:
        if min(*shape, per_box) < 1:
            raise InvalidRequest(
                f"there are {' x '.join(map(str, shape))} boxes of {per_box} particles; give 1 or more of each"
            )
        random = np.random.default_rng(seed)
        particles = random.random((*shape, per_box, 4), np.float32)  # x, y, z and charge
        for axis, boxes in enumerate(reversed(shape)):
            corners = np.arange(boxes, dtype=np.float32).reshape(-1, *[1] * (axis + 1))
            particles[..., axis] += corners  # boxes of edge 1
        self.inputs = {"particles": particles}
        self.nbytes = 2 * particles.nbytes

    @classmethod
    def of_size(cls, nbytes: int, seed: int = 0) -> Self:
        """Make one whose particles and forces take about `nbytes` together."""
        boxes = max(1, nbytes // (2 * PER_BOX * 16))
        side = max(1, min(WIDEST, round(boxes ** (1 / 3))))
        return cls((max(1, boxes // side**2), side, side), seed=seed)

    def run(self, lanes: Sequence[Lane]) -> Arrays:
        """Compute the forces, one task per layer; the layers are divided among the lanes, which never wait."""
        particles = self.inputs["particles"]
        depth, *layer = particles.shape
        forces = []
        for lane, (first, last) in zip(lanes, bands(depth, len(lanes)), strict=False):
            below = max(0, first - 1)
            band = lane.input(particles[below : min(depth, last + 1)])
            for z in range(first, last):
                target = lane.empty((1, *layer), np.float32)
                lane.submit("pair_forces", [band], [target], first=z - below, alpha=ALPHA)
                forces.append((lane, target))
        return {"forces": np.concatenate([lane.read(buffer) for lane, buffer in forces])}

    def reference(self) -> Arrays:
        """Compute the same with NumPy in double precision, by products of matrices."""
        boxes = np.ndindex(self._boxes)
        return {"forces": np.stack([self._forces(*box) for box in boxes]).reshape(self._particles.shape)}

    def check(self, result: Mapping[str, NDArray[Any]]) -> None:
        """Compare with the reference, to 1e-5 of a box's largest force; of many boxes with a thousand of them."""
        forces = result["forces"]
        if forces.shape != self._particles.shape:
            raise WrongResult(f"forces has shape {forces.shape}, expected {self._particles.shape}")
        boxes, expected = self._expected
        errors = np.abs(forces[tuple(boxes.T)] - expected).max(axis=(1, 2))
        worst = int(np.argmax(np.nan_to_num(errors, nan=np.inf)))
        z, y, x = (int(at) for at in boxes[worst])
        require_close(f"forces of box ({z}, {y}, {x}), forces", forces[z, y, x], expected[worst], 1e-5)

    @property
    def _particles(self) -> NDArray[Any]:
        return self.inputs["particles"]

    @property
    def _boxes(self) -> tuple[int, ...]:
        return self._particles.shape[:3]

    @cached_property
    def _expected(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Boxes that are checked, evenly spread, and their forces."""
        count = int(np.prod(self._boxes))
        chosen = np.linspace(0, count - 1, min(count, CHECKED)).round().astype(np.int64)
        boxes = np.stack(np.unravel_index(chosen, self._boxes), axis=1)
        return boxes, np.stack([self._forces(*box) for box in boxes])

    def _forces(self, z: int, y: int, x: int) -> NDArray[Any]:
        around = tuple(slice(max(0, at - 1), at + 2) for at in (z, y, x))
        home = self._particles[z, y, x].astype(np.float64)
        others = self._particles[around].reshape(-1, 4).astype(np.float64)
        middle = home[:, :3].mean(axis=0)  # differences of large coordinates would lose digits
        a, b, charge = home[:, :3] - middle, others[:, :3] - middle, others[:, 3]
        squares = (a**2).sum(1)[:, None] + (b**2).sum(1) - 2 * a @ b.T
        sums = np.exp(-(ALPHA**2) * squares) @ (charge[:, None] * np.column_stack([np.ones(len(b)), b]))
        potential = sums[:, :1]
        return np.hstack([potential, 2 * (a * potential - sums[:, 1:])])
