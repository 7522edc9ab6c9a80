"""The policy `spacetime`: what it admits is answered by its deadline."""

from __future__ import annotations

import pytest

from polymux.core.serving.model import ModelName, ServedModel
from polymux.sim.serving import Load, Poisson, Uniform
from tests.unit.policy.spacetime.scenarios import MS, V100, admitted_on_time, play, v100_load, v100_mix


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("scale", [0.3, 0.8, 1.5])
def test_all_that_is_admitted_is_answered_on_time_when_batches_take_what_was_expected(
    scale: float, flat: bool
) -> None:
    outcome = play(v100_mix(scale, flat=flat))
    assert admitted_on_time(outcome) >= 0.999
    assert sum(model.answered for model in outcome.models.values()) > 500


def test_a_model_without_a_surface_is_served() -> None:
    known = v100_load("mobilenet", 100, 25)
    model = ServedModel(ModelName("new"), 100 * MS, max_batch=8)
    outcome = play((known, Load(model, Poisson(50), truth=known.surfaces, ready={V100.id: V100.shares})))
    new = outcome.models[ModelName("new")]
    assert new.on_time >= 0.95 * new.offered
    assert (
        outcome.models[ModelName("mobilenet")].on_time
        >= 0.99 * outcome.models[ModelName("mobilenet")].offered
    )


def test_a_refusal_says_when_a_request_could_be_met() -> None:
    outcome = play((v100_load("vgg19", 2000, 100, arrivals=Uniform),))
    model = outcome.models[ModelName("vgg19")]
    assert model.refused > 0.5 * model.offered
    assert model.on_time == model.answered
