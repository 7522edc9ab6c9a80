"""A training program: python -m tests.training.trainer CHECKPOINT [--socket PATH] [--alone] ...

Says each step on standard output, and at the end a digest of all parameters and losses.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time

import torch

import polymux.training
from tests.unit.training.loops import Loop

EPOCHS = 4


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint")
    parser.add_argument("--socket")
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--priority", type=int)
    parser.add_argument("--levels")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    torch.set_num_threads(1)
    loop = Loop()
    train(loop, options)
    print(loop.digest(), flush=True)


def train(loop: Loop, options: argparse.Namespace) -> None:
    with polymux.training.job(
        loop.model,
        loop.optimizer,
        socket=options.socket,
        alone=options.alone,
        priority=options.priority,
        levels=options.levels.split(",") if options.levels else None,
        checkpoint=options.checkpoint,
        state={"scheduler": loop.scheduler},
    ) as job:
        print("begins after", job.steps, flush=True)
        for _ in job.epochs(options.epochs):
            for batch in job.batches(loop.loader):
                loop.learn(batch)
                print("step", job.steps + 1, job.device, flush=True)
                time.sleep(options.pause)
            loop.scheduler.step()


if __name__ == "__main__":
    main()
