"""Inference jobs in one process, each a stage and a model: run in turns, side by side, or with stages ahead."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polymux.client import Buffer, Client
from polymux.core.errors import OutputTooSmall, PolymuxError
from polymux.core.implementation import OnnxModel
from polymux.inputs import InputStage, Pipeline, StagePool, make_stage
from polymux.serving.output_sizes import OutputSizes

__all__ = ["InferenceJob", "ahead", "check_answers", "in_turns", "side_by_side"]

STAGE = "image,resize=256,normalise=imagenet"
AHEAD = 2
"""Items that a pipeline prepares while the model works on one."""

Array = NDArray[Any]


class InferenceJob:
    """A model behind an input stage, item by item.

    Parameters
    ----------
    client : Client
    name : str
    path : pathlib.Path
        Of the ONNX file.
    """

    def __init__(self, client: Client, name: str, path: Path) -> None:
        self.name = name
        spec = client.register(None, OnnxModel(str(path)), name=name, isolate=False)
        self.stage: InputStage = make_stage(STAGE, spec.inputs)
        (tensor,) = self.stage.outputs
        assert tensor.shape is not None, "a stage knows the shapes of its outputs"
        self._queue = client.queue(name)
        self._input = self._queue.empty(tuple(int(extent or 1) for extent in tensor.shape), np.float32)
        self._sizes = OutputSizes(spec.outputs)
        self._dtypes = [param.dtypes[0].name_short for param in spec.outputs]
        self._outputs = self._allocate()
        self.answers: list[Array] = []

    def infer(self, tensor: Array) -> None:
        """Run the model, and keep a part of its answer."""
        np.copyto(self._input.numpy(), tensor)
        while True:
            try:
                self._queue.submit(self.name, [self._input], self._outputs).wait()
                break
            except OutputTooSmall as error:
                self._sizes.learn((self._input.shape,), self._input.nbytes, [error.needed_nbytes or 0])
                self._outputs = self._allocate()
        self.answers.append(self._outputs[0].numpy().reshape(-1)[:64].copy())

    def _allocate(self) -> list[Buffer]:
        shapes = self._sizes.shapes((self._input.shape,), self._input.nbytes)
        return [self._queue.empty(shape, dtype) for shape, dtype in zip(shapes, self._dtypes, strict=True)]


Items = Sequence[Sequence[bytes]]
"""For each job its inputs."""


def in_turns(jobs: Sequence[InferenceJob], items: Items) -> float:
    """Time slicing by sessions: one job at a time, stage and model, then the next job. Returns seconds."""
    begin = _begin(jobs)
    for turn in zip(*items, strict=True):
        for job, item in zip(jobs, turn, strict=True):
            (tensor,) = job.stage.run([np.frombuffer(item, np.uint8)])
            job.infer(tensor)
    return time.perf_counter() - begin


def side_by_side(jobs: Sequence[InferenceJob], items: Items) -> float:
    """Nobody manages them: each job in a thread of its own, stage and model in turn. Returns seconds."""

    def work(job: InferenceJob, own: Sequence[bytes]) -> None:
        for item in own:
            (tensor,) = job.stage.run([np.frombuffer(item, np.uint8)])
            job.infer(tensor)

    return _together(jobs, items, work)


def ahead(jobs: Sequence[InferenceJob], items: Items, *, share: bool) -> float:
    """Stages in a bounded pool beside the device, ahead of the models; shared or not. Returns seconds."""
    with StagePool() as pool:

        def work(job: InferenceJob, own: Sequence[bytes]) -> None:
            with Pipeline(job.stage, own, ahead=AHEAD, pool=pool, share=share) as inputs:
                for (tensor,) in inputs:
                    job.infer(tensor)

        return _together(jobs, items, work)


def _together(
    jobs: Sequence[InferenceJob], items: Items, work: Callable[[InferenceJob, Sequence[bytes]], None]
) -> float:
    failures: list[BaseException] = []

    def guarded(job: InferenceJob, own: Sequence[bytes]) -> None:
        try:
            work(job, own)
        except BaseException as failure:  # told to the caller, who waits
            failures.append(failure)

    begin = _begin(jobs)
    threads = [
        threading.Thread(target=guarded, args=(job, own), name=job.name)
        for job, own in zip(jobs, items, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - begin
    if failures:
        raise failures[0]
    return seconds


def _begin(jobs: Sequence[InferenceJob]) -> float:
    for job in jobs:
        job.answers = []
    return time.perf_counter()


def check_answers(jobs: Sequence[InferenceJob], expected: Sequence[Sequence[Array]]) -> None:
    """Compare the jobs' answers with those of another way to run them.

    Raises
    ------
    PolymuxError
        When an answer differs.
    """
    for job, wanted in zip(jobs, expected, strict=True):
        if len(job.answers) != len(wanted) or not np.allclose(job.answers, wanted, rtol=1e-3, atol=1e-6):
            raise PolymuxError(f"the answers of {job.name} differ from those of the same job in turns")
