"""The training process: an ordinary PyTorch loop, a convolutional network on scikit-learn's digits.

``python -m polymux.bench.preempt.trainer ARGUMENTS`` is a `polymux.bench.preempt.worker.Worker`. Its arguments are the
number of threads (0: the library's own choice), whether it runs under SCHED_IDLE, and the folder of the gate.
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import numpy as np

from polymux.apps.digits import CLASSES, SIDE, Digits, load_digits
from polymux.bench.preempt.configurations import Boundary
from polymux.bench.preempt.gate import TrainingSide
from polymux.bench.preempt.worker import reply
from polymux.core.errors import PolymuxError

BATCH = 32
WIDTHS = ((64, False), (64, True), (128, False), (128, True), (256, False), (256, True))
"""Channels of each block, and whether it halves the picture."""
TORCH = "2.13.0"


def require_torch() -> None:
    """Check that PyTorch is there.

    Raises
    ------
    PolymuxError
        If it is not; tells what to do.
    """
    if find_spec("torch") is None:
        raise PolymuxError(
            "the training process needs PyTorch, which is not installed; install it: pip install"
            f" 'polymux[train]', or pip install torch=={TORCH}"
        )


def make_network(torch: Any) -> Any:
    """Make the network: six blocks of convolution, normalization and ReLU, and a linear layer."""
    nn = torch.nn
    blocks, channels, side = [], 1, SIDE
    for width, halves in WIDTHS:
        layers = [nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        if halves:
            layers.append(nn.MaxPool2d(2))
            side //= 2
        blocks.append(nn.Sequential(*layers))
        channels = width
    return nn.Sequential(*blocks, nn.Sequential(nn.Flatten(), nn.Linear(channels * side * side, CLASSES)))


class Training:
    """A network, its optimizer and its data.

    Parameters
    ----------
    threads : int
        That PyTorch computes with; 0: its own choice.
    gate : TrainingSide
    """

    def __init__(self, threads: int, gate: TrainingSide) -> None:
        self.torch = torch = importlib.import_module("torch")
        if threads:
            torch.set_num_threads(threads)
        torch.manual_seed(0)
        self.network = make_network(torch)
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=0.01, momentum=0.9)
        self._gate = gate
        self._between_parts = False
        for block in self.network:
            block.register_forward_pre_hook(self._at_part)
            block.register_full_backward_pre_hook(self._at_part)
        self.optimizer.register_step_pre_hook(self._at_part)
        self._batches = _endless(load_digits()[0])

    def run(self, boundary: Boundary, socket: str | None, commands: queue.SimpleQueue[str]) -> list[int]:
        """Train until there is a command, answering the last one when a first step is done.

        Returns
        -------
        list of int
            When each step ended, in ns of the monotonic clock.
        """
        self._between_parts = boundary == "subgraph"
        waits = boundary in ("step", "subgraph")
        ends = []
        with self._leased(socket) if socket else nullcontext():
            self.step()
            ends.append(time.perf_counter_ns())
            reply({})
            while commands.empty():
                self.step()
                ends.append(time.perf_counter_ns())
                if waits:
                    self._gate.boundary()
        return ends

    def step(self) -> None:
        """Train on one batch."""
        torch = self.torch
        images, labels = next(self._batches)
        self.optimizer.zero_grad()
        scores = self.network(torch.from_numpy(images))
        torch.nn.functional.cross_entropy(scores, torch.from_numpy(labels)).backward()
        self.optimizer.step()

    def _leased(self, socket: str) -> AbstractContextManager[object]:
        training = importlib.import_module("polymux.training")  # it imports PyTorch
        return cast(
            AbstractContextManager[object],
            training.job(self.network, self.optimizer, name="training", socket=socket),
        )

    def _at_part(self, *_: Any) -> None:
        if self._between_parts:
            self._gate.boundary()


def _endless(digits: Digits) -> Iterator[tuple[Any, Any]]:
    rng = np.random.default_rng(0)
    while True:
        for images, labels in digits.batches(BATCH, rng):
            yield images, labels.astype(np.int64)


def main(arguments: dict[str, Any]) -> None:
    """Carry out commands until there are no more.

    ``{"do": "train", "boundary": B, "socket": S}`` trains until ``{"do": "stop"}``.
    """
    if arguments["idle"]:  # before PyTorch has any thread: they all inherit it
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    commands: queue.SimpleQueue[str] = queue.SimpleQueue()
    training = Training(arguments["threads"], TrainingSide(Path(arguments["gate"])))
    training.step()
    threading.Thread(target=_read, args=(commands,), daemon=True).start()
    reply({})
    while line := commands.get():
        command = json.loads(line)
        if command["do"] == "train":
            reply({"ends_ns": training.run(command["boundary"], command["socket"], commands)})


def _read(commands: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        commands.put(line)
    commands.put("")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
