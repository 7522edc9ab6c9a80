"""LeNet's scores are those of its definition, and its gradients those of numerical differences, on every device."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view
from scipy.special import log_softmax

from polymux.apps.lenet import Extents, LeNet, initial_weights
from polymux.apps.native_lane import NativeLane, native_lanes
from polymux.core.errors import DeviceUnavailable

SMALL = Extents(side=14, kernel=3, channels=(2, 3), hidden=6, classes=4)
BATCH = 3
MOVE = 1e-6


@pytest.fixture(params=["cpu", "opencl"])
def lane(request: pytest.FixtureRequest) -> Iterator[NativeLane]:
    try:
        (made,) = native_lanes(request.param)
    except DeviceUnavailable as error:
        pytest.skip(str(error))
    with made:
        yield made


def digits(extents: Extents, batch: int, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(7)
    images = random.random((batch, 1, extents.side, extents.side)).astype(dtype)
    return images, random.integers(0, extents.classes, batch).astype(np.int32)


def scores_of(weights: dict[str, np.ndarray], images: np.ndarray, extents: Extents) -> np.ndarray:
    """The network by its definition."""
    x = images.astype("f8")
    for layer, outputs in enumerate(extents.channels, 1):
        kernel = weights[f"conv{layer}.weight"].reshape(outputs, -1, extents.kernel, extents.kernel)
        windows = sliding_window_view(x, (extents.kernel, extents.kernel), (2, 3))
        y = np.einsum("nchwij,ocij->nohw", windows, kernel) + weights[f"conv{layer}.bias"][:, None, None]
        half = y.shape[2] // 2
        x = y[:, :, : 2 * half, : 2 * half].reshape(*y.shape[:2], half, 2, half, 2).max((3, 5))
    hidden = x.reshape(len(x), -1) @ weights["dense1.weight"].T + weights["dense1.bias"]
    return np.maximum(hidden, 0) @ weights["dense2.weight"].T + weights["dense2.bias"]


def loss_of(weights: dict[str, np.ndarray], images: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return -log_softmax(scores_of(weights, images, SMALL), axis=1)[np.arange(len(labels)), labels]


@pytest.mark.parametrize(
    ("extents", "batch"), [(SMALL, BATCH), (Extents(), 5), (Extents(side=13, kernel=2), 1)]
)
def test_the_scores_are_those_of_the_definition(lane: NativeLane, extents: Extents, batch: int) -> None:
    images, _ = digits(extents, batch, "f4")
    network = LeNet(lane, batch, extents, seed=3)
    network.unroll(lane.array(images))
    scores = lane.read(network.forward())
    np.testing.assert_allclose(scores, scores_of(initial_weights(extents, 3), images, extents), atol=1e-4)


def test_the_loss_and_all_gradients_are_right(lane: NativeLane) -> None:
    images, labels = digits(SMALL, BATCH, "f8")
    network = LeNet(lane, BATCH, SMALL, seed=1, dtype="f8")
    loss = lane.empty((BATCH,), "f8")
    network.unroll(lane.array(images))
    network.forward()
    network.backward(lane.array(labels), loss)
    weights = initial_weights(SMALL, 1)
    np.testing.assert_allclose(lane.read(loss), loss_of(weights, images, labels), atol=1e-12)
    for name, buffer in network.gradients.items():
        numerical = np.zeros(weights[name].shape)
        for index in np.ndindex(*numerical.shape):
            at = weights[name][index]
            for sign in (1, -1):
                weights[name][index] = at + sign * MOVE
                numerical[index] += sign * loss_of(weights, images, labels).mean() / (2 * MOVE)
            weights[name][index] = at
        np.testing.assert_allclose(lane.read(buffer), numerical, atol=1e-8, err_msg=name)


def test_an_update_moves_the_weights_with_momentum(lane: NativeLane) -> None:
    images, labels = digits(SMALL, BATCH, "f8")
    network = LeNet(lane, BATCH, SMALL, dtype="f8")
    x, y, loss = lane.array(images), lane.array(labels), lane.empty((BATCH,), "f8")
    expected, velocity = network.weights(), dict.fromkeys(network.parameters, 0.0)
    for _ in range(3):
        network.unroll(x)
        network.forward()
        network.backward(y, loss)
        network.update(0.1, 0.5)
        for name, buffer in network.gradients.items():
            velocity[name] = 0.5 * velocity[name] + lane.read(buffer)
            expected[name] = expected[name] - 0.1 * velocity[name]
    for name, weight in network.weights().items():
        np.testing.assert_allclose(weight, expected[name], atol=1e-12)


def test_a_step_against_the_gradient_makes_the_loss_smaller(lane: NativeLane) -> None:
    images, labels = digits(SMALL, BATCH, "f8")
    network = LeNet(lane, BATCH, SMALL, dtype="f8")
    x, y, loss = lane.array(images), lane.array(labels), lane.empty((BATCH,), "f8")
    losses = []
    for _ in range(5):
        network.unroll(x)
        network.forward()
        network.backward(y, loss)
        losses.append(float(lane.read(loss).mean()))
        network.update(0.05)
    assert losses == sorted(losses, reverse=True)
