"""Train a network on handwritten digits with PyTorch, as a job that gives way to served models.

Needs PyTorch and scikit-learn (pip install 'polymux[train,examples]'):

    polymux up --detach
    python examples/training/train.py --checkpoint digits.pt
"""

from __future__ import annotations

import argparse
import logging
import math
import sys
import time
from pathlib import Path

import torch
from network import Network, accuracy, export
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import polymux.training
from polymux.apps.digits import Digits, load_digits
from polymux.core.errors import PolymuxError


def main() -> int:
    options = parse()
    logging.basicConfig(level=logging.INFO, format="train: %(message)s", stream=sys.stderr)
    torch.manual_seed(options.seed)
    if options.threads:
        torch.set_num_threads(options.threads)
    try:
        learn, test = load_digits()
        network = Network(options.width)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.02, momentum=0.9)
        if options.plain:
            plain(options, network, optimizer, learn, test)
        else:
            shared(options, network, optimizer, learn, test)
        if options.export:
            print(f"the model is in {export(network, options.export)}")
    except (PolymuxError, OSError) as error:
        print(f"train: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a network on handwritten digits as a Polymux job.")
    parser.add_argument("--epochs", type=int, default=6, help="passes over all digits (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=128, help="images in a step (default: %(default)s)")
    parser.add_argument(
        "--width", type=int, default=32, help="channels of the first layer (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of weights and order (default: %(default)s)")
    parser.add_argument("--threads", type=int, help="of PyTorch (default: PyTorch's own choice)")
    parser.add_argument("--seconds", type=float, help="end after so many, whatever the epochs")
    parser.add_argument("--export", type=Path, metavar="DIR", help="write the model into this repository")
    parser.add_argument("--plain", action="store_true", help="train without Polymux, for comparison")
    job = parser.add_argument_group("as a job")
    job.add_argument(
        "--checkpoint", metavar="FILE", help="go on from there if it is there; written at the end"
    )
    job.add_argument("--priority", type=int, help="larger goes first")
    job.add_argument("--weight", type=float, help="part of the device time among jobs (default: 1.0)")
    job.add_argument("--device", metavar="ID", help="such as cpu:0 (default: the server decides)")
    job.add_argument("--alone", action="store_true", help="without a server, go on alone rather than wait")
    job.add_argument("--socket", metavar="PATH", help="of the server (default: this user's)")
    return parser.parse_args()


def shared(
    options: argparse.Namespace,
    network: Network,
    optimizer: torch.optim.Optimizer,
    learn: Digits,
    test: Digits,
) -> None:
    with polymux.training.job(
        network,
        optimizer,
        name="digits",
        priority=options.priority,
        weight=options.weight,
        device=options.device,
        alone=options.alone,
        socket=options.socket,
        checkpoint=options.checkpoint,
    ) as job:
        if job.resumed:
            print(f"going on after step {job.steps}")
        clock = Clock(options)
        loss = math.nan
        for epoch in job.epochs(options.epochs):
            for images, labels in job.batches(loader_of(options, learn)):
                loss = step(network, optimizer, images, labels)
                if clock.step():
                    break
            clock.tell(epoch, loss, network, test, f" on {job.device}" if job.device else "")
            if clock.over:
                break


def plain(
    options: argparse.Namespace,
    network: Network,
    optimizer: torch.optim.Optimizer,
    learn: Digits,
    test: Digits,
) -> None:
    clock, loss = Clock(options), math.nan
    for epoch in range(options.epochs):
        for images, labels in loader_of(options, learn):
            loss = step(network, optimizer, images, labels)
            if clock.step():
                break
        clock.tell(epoch, loss, network, test, "")
        if clock.over:
            break


def step(
    network: Network, optimizer: torch.optim.Optimizer, images: torch.Tensor, labels: torch.Tensor
) -> float:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(network(images), labels)
    loss.backward()
    optimizer.step()
    return loss.item()


def loader_of(options: argparse.Namespace, digits: Digits) -> DataLoader[tuple[torch.Tensor, ...]]:
    return DataLoader(tensors(digits), batch_size=options.batch, shuffle=True, drop_last=True)


def tensors(digits: Digits) -> TensorDataset:
    return TensorDataset(torch.from_numpy(digits.images), torch.from_numpy(digits.labels).long())


class Clock:
    """Counts steps, and says how fast they are."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.began = time.perf_counter()
        self.seconds = options.seconds
        self.steps = 0
        self.over = False

    def step(self) -> bool:
        self.steps += 1
        if self.steps == 1:
            print(f"step 1: {time.perf_counter() - self.began:.2f} s after the start", flush=True)
        self.over = self.seconds is not None and time.perf_counter() - self.began >= self.seconds
        return self.over

    def tell(self, epoch: int, loss: float, network: Network, test: Digits, where: str) -> None:
        speed = self.steps / (time.perf_counter() - self.began)
        right = accuracy(network, *tensors(test).tensors)
        print(
            f"epoch {epoch + 1}: loss {loss:.4f}, {right:.1%} of {len(test)} digits read,"
            f" {speed:.1f} steps/s{where}",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
