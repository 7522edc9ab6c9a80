"""Trains LeNet on handwritten digits through one or more lanes, epoch by epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polymux.apps.digits import SIDE, Digits
from polymux.apps.lane import Array, Lane
from polymux.apps.lenet import LeNet, Placement
from polymux.core.errors import InvalidRequest
from polymux.segment import Task


@dataclass(frozen=True, slots=True)
class Schedule:
    """How to train.

    Parameters
    ----------
    batch : int
        Images in a step.
    rate : float
        Learning rate.
    momentum : float
        Part of the last step that goes on in the next one, 0 (none) to less than 1.
    seed : int
        Of the first weights and of the order of the images.

    Raises
    ------
    InvalidRequest
        For values out of range.
    """

    batch: int = 64
    rate: float = 0.01
    momentum: float = 0.9
    seed: int = 0

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise InvalidRequest(f"batch is {self.batch}, expected 1 or more images")
        if not 0 < self.rate < float("inf"):
            raise InvalidRequest(f"rate is {self.rate}, expected a positive number")
        if not 0 <= self.momentum < 1:
            raise InvalidRequest(f"momentum is {self.momentum}, expected 0 to less than 1")


@dataclass(frozen=True, slots=True)
class Epoch:
    """What one pass over the digits brought.

    Parameters
    ----------
    losses : ndarray
        float64, (steps,): the mean loss of each step's images, before the step.
    """

    losses: Array

    @property
    def loss(self) -> float:
        """The mean of the steps' losses."""
        return float(self.losses.mean())


@dataclass(frozen=True, slots=True)
class _Part:
    """Buffers of one lane's part of a step."""

    images: Any
    labels: Any
    loss: Any


class Training:
    """A network, its digits and the lanes that train it.

    Parameters
    ----------
    lanes : sequence of Lane
        Each computes the gradients of an equal part of every batch; then the first one updates the weights. With two,
        one part computes while the other one's queue migrates.
    digits : Digits
    schedule : Schedule
    placement : Placement, optional
        Devices of queues that migrate; see `polymux.apps.lenet.Placement`.

    Raises
    ------
    InvalidRequest
        If there are fewer digits than a batch takes, or the lanes cannot have equal parts of it.
    """

    def __init__(
        self,
        lanes: Sequence[Lane],
        digits: Digits,
        schedule: Schedule = Schedule(),
        placement: Placement | None = None,
    ) -> None:
        batch, parts = schedule.batch, len(lanes)
        if batch > len(digits):
            raise InvalidRequest(
                f"batch is {batch}, there are {len(digits)} digits; give that number or less"
            )
        if parts == 0 or batch % parts:
            raise InvalidRequest(
                f"batch is {batch}, which {parts} lanes cannot share; give a multiple of them"
            )
        self.schedule = schedule
        self._lanes, self._digits, self._part = lanes, digits, batch // parts
        self._networks: list[LeNet] = []
        for lane in lanes:
            shared = self._networks[0].parameters if self._networks else None
            self._networks.append(
                LeNet(lane, self._part, seed=schedule.seed, placement=placement, parameters=shared)
            )
        self._ends: list[object] = []
        self._updated: object = None
        self._random = np.random.default_rng(schedule.seed)
        self._next = list(self._steps())

    @property
    def steps_per_epoch(self) -> int:
        """Batches that the digits fill."""
        return len(self._digits) // self.schedule.batch

    @property
    def migrations(self) -> int:
        """Changes of the device that the tasks so far ask for."""
        return sum(network.migrations for network in self._networks)

    def epoch(self) -> Epoch:
        """Train on every digit once (but for those that do not fill a batch) and wait.

        Notes
        -----
        While the devices work, the next epoch's batches are put into shared memory.
        """
        steps, later, self._next = self._next, self._steps(), []
        for network, part in zip(self._networks, steps[0], strict=True):
            network.unroll(part.images)
        for at, parts in enumerate(steps):
            self._submit(parts, steps[at + 1] if at + 1 < len(steps) else None)
            self._next.append(next(later))
            self._update()
        read = self._lanes[0].read
        losses = [[read(part.loss) for part in parts] for parts in steps]
        return Epoch(np.array(losses, np.float64).mean(axis=(1, 2)))

    def accuracy(self, digits: Digits) -> float:
        """Classify digits; the part of them that is classified rightly, 0 to 1."""
        right = 0
        for images, labels in _padded(digits, self._part):
            self._networks[0].unroll(self._lanes[0].array(images))
            scores = self._lanes[0].read(self._networks[0].forward())
            right += int((scores[: len(labels)].argmax(axis=1) == labels).sum())
        return right / len(digits)

    def weights(self) -> dict[str, Array]:
        """Wait and copy the present weights."""
        return self._networks[0].weights()

    def _submit(self, parts: list[_Part], later: list[_Part] | None) -> None:
        """Submit a step up to the gradients, and after it what the next one can begin without the new weights."""
        self._ends = []
        for at, network in enumerate(self._networks):
            if at == 1:
                _wait(
                    self._updated
                )  # the first lane is in order; the others need the weights that it has updated
            network.forward()
            self._ends.append(network.backward(parts[at].labels, parts[at].loss))
            if later is not None:
                network.unroll(later[at].images)

    def _update(self) -> None:
        """Move the weights by the mean of the parts' gradients."""
        first, *others = self._networks
        if others:
            for end in self._ends:
                _wait(end)
        for network in others:
            first.add_gradients(network)
        self._updated = first.update(self.schedule.rate / len(self._networks), self.schedule.momentum)

    def _steps(self) -> Iterator[list[_Part]]:
        """Put the batches of an epoch into memory, one at a time."""
        for images, labels in self._digits.batches(self.schedule.batch, self._random):
            cuts = [slice(i * self._part, (i + 1) * self._part) for i in range(len(self._lanes))]
            yield [
                _Part(lane.array(images[cut]), lane.array(labels[cut]), lane.empty((self._part,), np.float32))
                for lane, cut in zip(self._lanes, cuts, strict=True)
            ]


def _wait(task: object) -> None:
    """Wait for a task of a queue; other lanes have done theirs when they return."""
    if isinstance(task, Task):
        task.wait()


def _padded(digits: Digits, batch: int) -> Iterator[tuple[Array, Array]]:
    for begin in range(0, len(digits), batch):
        images = np.zeros((batch, 1, SIDE, SIDE), np.float32)
        labels = digits.labels[begin : begin + batch]
        images[: len(labels)] = digits.images[begin : begin + batch]
        yield images, labels
