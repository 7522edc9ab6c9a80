"""lavamd: the reference itself, any shape and number of lanes, and where a wrong force is."""

from __future__ import annotations

import numpy as np
import pytest

from polymux.apps.application import WrongResult
from polymux.apps.lavamd import ALPHA, LavaMD
from polymux.apps.native_lane import native_lanes
from polymux.core.errors import InvalidRequest


def test_the_reference_is_the_sum_over_all_pairs() -> None:
    application = LavaMD((2, 1, 2), per_box=7, seed=1)  # all boxes touch
    p = application.inputs["particles"].astype("f8").reshape(-1, 4)
    d = p[:, None, :3] - p[None, :, :3]
    w = p[None, :, 3] * np.exp(-(ALPHA**2) * (d**2).sum(-1))
    expected = np.column_stack([w.sum(1), 2 * (w[..., None] * d).sum(1)])
    np.testing.assert_allclose(application.reference()["forces"].reshape(-1, 4), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 1, 3), (2, 4, 2)])
@pytest.mark.parametrize("lanes", [1, 2, 7])
def test_boxes_of_any_shape_over_any_number_of_lanes(shape: tuple[int, int, int], lanes: int) -> None:
    application = LavaMD(shape, per_box=20)
    result = application.run(native_lanes("cpu", lanes))
    application.check(result)
    one = application.run(native_lanes("cpu"))
    assert result["forces"].tobytes() == one["forces"].tobytes()


def test_a_wrong_force_is_told_with_its_box_and_particle() -> None:
    application = LavaMD((2, 3, 4), per_box=10)
    forces = application.reference()["forces"]
    application.check({"forces": forces})
    forces[1, 2, 0, 4, 3] = np.nan
    with pytest.raises(WrongResult, match=r"forces of box \(1, 2, 0\), forces\[4, 3\] is nan, expected"):
        application.check({"forces": forces})
    with pytest.raises(WrongResult, match="forces has shape"):
        application.check({"forces": forces[1:]})


def test_a_large_one_is_checked_in_a_thousand_of_its_boxes() -> None:
    application = LavaMD((4, 20, 20), per_box=2)
    forces = application.reference()["forces"]
    forces[0, 0, 0] += 1
    with pytest.raises(WrongResult, match=r"box \(0, 0, 0\)"):
        application.check({"forces": forces})


def test_the_grid_grows_in_one_direction_so_that_tasks_stay_short() -> None:
    assert LavaMD.of_size(1 << 20).inputs["particles"].shape[1:3] == (7, 7)
    assert LavaMD.of_size(64 << 20).inputs["particles"].shape[1:3] == (16, 16)


def test_boxes_without_particles_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="there are 1 x 0 x 2 boxes of 100 particles; give 1 or more"):
        LavaMD((1, 0, 2))
