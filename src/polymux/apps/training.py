"""Trains LeNet on handwritten digits through a lane, epoch by epoch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from polymux.apps.digits import SIDE, Digits
from polymux.apps.lane import Array, Lane
from polymux.apps.lenet import Extents, LeNet, Placement
from polymux.core.errors import InvalidRequest


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
class _Step:
    """Buffers of one step."""

    images: Any
    labels: Any
    loss: Any


class Training:
    """A network, its digits and the lane that trains it.

    Parameters
    ----------
    lane : Lane
    digits : Digits
    schedule : Schedule
    placement : Placement, optional
        Devices of a queue that migrates; see `polymux.apps.lenet.Placement`.

    Raises
    ------
    InvalidRequest
        If there are fewer digits than a batch takes.
    """

    def __init__(
        self, lane: Lane, digits: Digits, schedule: Schedule = Schedule(), placement: Placement | None = None
    ) -> None:
        if schedule.batch > len(digits):
            raise InvalidRequest(
                f"batch is {schedule.batch}, there are {len(digits)} digits; give that number or less"
            )
        self.schedule = schedule
        self.network = LeNet(lane, schedule.batch, Extents(), seed=schedule.seed, placement=placement)
        self._lane, self._digits = lane, digits
        self._random = np.random.default_rng(schedule.seed)
        self._next = self._prepare()

    @property
    def steps_per_epoch(self) -> int:
        """Batches that the digits fill."""
        return len(self._digits) // self.schedule.batch

    def epoch(self) -> Epoch:
        """Train on every digit once (but for those that do not fill a batch) and wait.

        Notes
        -----
        While the devices work, the next epoch's batches are put into shared memory.
        """
        steps = self._next
        for step in steps:
            self.network.forward(step.images)
            self.network.backward(step.labels, step.loss)
            self.network.update(self.schedule.rate, self.schedule.momentum)
        self._next = self._prepare()
        return Epoch(np.array([self._lane.read(step.loss).mean(dtype=np.float64) for step in steps]))

    def accuracy(self, digits: Digits) -> float:
        """Classify digits; the part of them that is classified rightly, 0 to 1."""
        right = 0
        for images, labels in _padded(digits, self.schedule.batch):
            scores = self._lane.read(self.network.forward(self._lane.array(images)))
            right += int((scores[: len(labels)].argmax(axis=1) == labels).sum())
        return right / len(digits)

    def _prepare(self) -> list[_Step]:
        return [
            _Step(
                self._lane.array(images),
                self._lane.array(labels),
                self._lane.empty((self.schedule.batch,), np.float32),
            )
            for images, labels in self._digits.batches(self.schedule.batch, self._random)
        ]


def _padded(digits: Digits, batch: int) -> Iterator[tuple[Array, Array]]:
    for begin in range(0, len(digits), batch):
        images = np.zeros((batch, 1, SIDE, SIDE), np.float32)
        labels = digits.labels[begin : begin + batch]
        images[: len(labels)] = digits.images[begin : begin + batch]
        yield images, labels
