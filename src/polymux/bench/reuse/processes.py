"""Training jobs in processes of their own that go through the same pictures, with and without sharing.

``python -m polymux.bench.reuse.processes FOLDER STORE`` is one of them (without STORE it does not share): it
trains a linear classifier on the pictures of the folder, once it reads a line from its input, and writes how many
seconds that took.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from polymux.bench.report import Progress
from polymux.bench.reuse.jobs import STAGE
from polymux.bench.reuse.pictures import make_pictures
from polymux.core.errors import PolymuxError
from polymux.inputs import Pipeline, SharedStore, StagePool, input_stage

__all__ = ["measure_processes"]

JOBS = 2
BATCH = 8
CLASSES = 10
SHAPE = (3, 224, 224)
RATE = 1e-6


def measure_processes(folder: Path, count: int, rounds: int, progress: Progress) -> dict[str, Any]:
    """Measure; `count` is the number of pictures of each job and round."""
    gains: list[float] = []
    rates: list[float] = []
    for index in range(rounds):
        pictures = folder / f"pictures-{index}"
        pictures.mkdir()
        for number, content in enumerate(make_pictures(count, 2000 + index)):
            (pictures / f"{number:05}.jpg").write_bytes(content)
        seconds: dict[bool, float] = {}
        for share in (False, True):
            progress(
                f"training jobs in processes, {'shared' if share else 'not shared'}: round {index + 1} of {rounds}"
            )
            seconds[share] = _run(pictures, folder / f"store-{index}" if share else None)
        gains.append(seconds[False] / seconds[True] - 1)
        rates.append(JOBS * count / seconds[True])
    return {
        "case": "two training jobs in processes, one input",
        "gain": median(gains),
        "items_per_s": median(rates),
        "baseline": "not shared",
    }


def _run(pictures: Path, store: Path | None) -> float:
    """Run the jobs side by side; the time of the slower one."""
    words = [sys.executable, "-m", __name__, str(pictures), *([str(store)] if store is not None else [])]
    processes = [
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(JOBS)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise PolymuxError("a training job of the benchmark did not start")
        answers = []
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in processes:
            assert process.stdout is not None
            answers.append(process.stdout.readline().split())
        if any(len(answer) != 2 for answer in answers) or len({answer[1] for answer in answers}) != 1:
            raise PolymuxError(f"the training jobs of the benchmark came to different results: {answers}")
        return max(float(answer[0]) for answer in answers)
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def main(folder: str, store: str = "") -> None:
    """Be one of the jobs."""
    stage = input_stage(STAGE, SHAPE)
    files = sorted(Path(folder).glob("*.jpg"))
    weights = np.zeros((int(np.prod(SHAPE)), CLASSES), np.float32)
    shared = SharedStore(Path(store)) if store else None
    with StagePool(1, store=shared) as pool, threadpool_limits(1):
        print("ready", flush=True)
        sys.stdin.readline()
        begin = time.perf_counter()
        with Pipeline(stage, files, batch=BATCH, pool=pool, share=shared is not None) as batches:
            for number, (images,) in enumerate(batches):
                _step(weights, images.reshape(len(images), -1), number)
        print(time.perf_counter() - begin, float(np.abs(weights).sum()), flush=True)
        sys.stdin.readline()  # the store is deleted with its last user: not before the others have ended


def _step(weights: NDArray[np.float32], images: NDArray[Any], number: int) -> None:
    """Softmax regression: one step of gradient descent on labels that go round."""
    labels = (np.arange(len(images)) + number) % CLASSES
    scores = images @ weights
    scores -= scores.max(axis=1, keepdims=True)
    chances = np.exp(scores)
    chances /= chances.sum(axis=1, keepdims=True)
    chances[np.arange(len(images)), labels] -= 1
    weights -= RATE * (images.T @ chances)


if __name__ == "__main__":
    main(*sys.argv[1:])
