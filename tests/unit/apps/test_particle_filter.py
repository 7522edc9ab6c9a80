"""The particle filter: it finds the object, and its particles do not depend on how they are divided."""

from __future__ import annotations

import numpy as np
import pytest

from polymux.apps.application import WrongResult
from polymux.apps.native_lane import native_lanes
from polymux.apps.particle_filter import ParticleFilter
from polymux.core.errors import InvalidRequest


def run(application: ParticleFilter, lanes: int = 1) -> np.ndarray:
    return application.run(native_lanes("cpu", lanes))["path"]


def test_the_object_is_followed_within_a_pixel() -> None:
    application = ParticleFilter(20_000, side=96, seed=2)
    distance = np.linalg.norm(run(application) - application.truth, axis=1)
    assert distance.mean() < 0.5
    assert distance.max() < 1.5


@pytest.mark.parametrize("lanes", [2, 3, 7])
def test_the_estimates_do_not_depend_on_the_number_of_lanes(lanes: int) -> None:
    application = ParticleFilter(5000, side=48, seed=3)
    np.testing.assert_allclose(run(application, lanes), run(application), rtol=0, atol=1e-4)


@pytest.mark.parametrize("particles", [1, 2, 3])
def test_a_few_particles_on_more_lanes_are_fine(particles: int) -> None:
    application = ParticleFilter(particles, side=40, frames=5)
    np.testing.assert_allclose(run(application, 4), run(application), rtol=0, atol=1e-4)


def test_another_seed_gives_other_images_and_other_particles() -> None:
    one, other = (ParticleFilter(500, side=40, frames=3, seed=seed) for seed in (1, 2))
    assert (run(one) != run(other)).all()
    assert (run(one) == run(ParticleFilter(500, side=40, frames=3, seed=1))).all()


def test_a_path_that_leaves_the_reference_is_told_with_its_image() -> None:
    application = ParticleFilter(20_000, side=64)
    path = application.reference()["path"].copy()
    application.check({"path": path})
    path[7, 1] += 2
    with pytest.raises(WrongResult, match=r"path\[7, 1\] is .*: a difference of 2\.000 pixels"):
        application.check({"path": path})
    with pytest.raises(WrongResult, match="path has shape"):
        application.check({"path": path[1:]})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"particles": 0}, "there are 0 particles and 32 images; give 1 or more of each"),
        ({"particles": 5, "frames": 0}, "there are 5 particles and 0 images"),
        ({"particles": 5, "side": 19}, "side is 19; give images of 20 pixels or more"),
    ],
)
def test_what_cannot_be_filtered_is_told(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        ParticleFilter(**arguments)
