"""A training program: python -m tests.training.trainer CHECKPOINT [--socket PATH] [--alone] ...

Says each step on standard output, and at the end a digest of all parameters and losses.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from pathlib import Path

import torch

import polymux.training
from tests.segment.job_program import Counter
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
    parser.add_argument("--weight", type=float)
    parser.add_argument("--counter", type=Path, help="count steps here, and say nothing of them")
    parser.add_argument("--exhaust", type=int, help="run out of memory in this step")
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
        weight=options.weight,
        levels=options.levels.split(",") if options.levels else None,
        checkpoint=options.checkpoint,
        state={"scheduler": loop.scheduler},
    ) as job:
        print("begins after", job.steps, flush=True)
        counter = Counter(options.counter) if options.counter else None
        for _ in job.epochs(options.epochs):
            for batch in job.batches(loop.loader):
                if job.steps + 1 == options.exhaust:
                    loop.model(batch[0])
                    torch.empty(1 << 62, dtype=torch.uint8)
                loop.learn(batch)
                if counter is None:
                    print("step", job.steps + 1, job.device, flush=True)
                else:
                    counter.count()
                time.sleep(options.pause)
            loop.scheduler.step()


if __name__ == "__main__":
    main()
