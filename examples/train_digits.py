"""Train LeNet on handwritten digits; with --helper, convolutions are unrolled on another device than they run on.

Needs scikit-learn for the digits. Joins the running server (`polymux up`), or starts the same runtime inside:

    python examples/train_digits.py
    polymux up --detach --device cpu:0 --device cpu:1
    python examples/train_digits.py --main cpu:0 --helper cpu:1
"""

from __future__ import annotations

import argparse
import sys
import time

import polymux
from polymux.apps.digits import load_digits
from polymux.apps.lane import QueueLane
from polymux.apps.lenet import Placement
from polymux.apps.training import Schedule, Training
from polymux.core.errors import InvalidRequest, PolymuxError

SEGMENT_NBYTES = 1 << 30
CAPACITY = 8192  # more tasks than an epoch has, so that submitting never waits


def main() -> int:
    options = parse()
    try:
        train(options)
    except (PolymuxError, OSError) as error:
        print(f"train_digits: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Train LeNet on scikit-learn's handwritten digits through Polymux."
    )
    parser.add_argument("--epochs", type=int, default=8, help="passes over all digits (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=64, help="images in a step (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=0.01, help="learning rate (default: %(default)s)")
    parser.add_argument("--momentum", type=float, default=0.9, help="0 to less than 1 (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and order (default: %(default)s)")
    parser.add_argument("--socket", metavar="PATH", help="of the server (default: this user's)")
    parser.add_argument(
        "--main", metavar="DEVICE", help="device of the training, such as cpu:0 (default: the server decides)"
    )
    parser.add_argument(
        "--helper", metavar="DEVICE", help="device of im2col and col2im, such as cpu:1; needs --main"
    )
    options = parser.parse_args()
    if options.epochs < 1:
        parser.error(f"--epochs {options.epochs}: give 1 or more")
    if options.helper and not options.main:
        parser.error("--helper needs --main, the device to come back to")
    return options


def train(options: argparse.Namespace) -> None:
    training_digits, test_digits = load_digits()
    schedule = Schedule(options.batch, options.rate, options.momentum, options.seed)
    with polymux.connect(options.socket, name="train_digits", segment_nbytes=SEGMENT_NBYTES) as client:
        for device in {options.main, options.helper} - {None}:
            if device not in client.devices:
                raise InvalidRequest(f"there is no device {device}; there are {', '.join(client.devices)}")
        placement = Placement(options.main, options.helper) if options.helper else None
        # A pinned queue cannot migrate, so with a helper the tasks name their devices instead.
        with client.queue(device=None if placement else options.main, capacity=CAPACITY) as queue:
            training = Training([QueueLane(queue)], training_digits, schedule, placement)
            print(
                f"{len(training_digits)} digits, {training.steps_per_epoch} steps of {options.batch} an epoch"
            )
            for epoch in range(1, options.epochs + 1):
                start, before = time.perf_counter(), training.migrations
                found = training.epoch()
                seconds = time.perf_counter() - start
                moved = training.migrations - before
                words = f", {moved / seconds:,.0f} migrations/s" if moved else ""
                print(
                    f"epoch {epoch}: loss {found.loss:.4f}, accuracy {training.accuracy(test_digits):.1%},"
                    f" {1e3 * seconds / training.steps_per_epoch:.1f} ms a step{words}",
                    flush=True,
                )


if __name__ == "__main__":
    sys.exit(main())
