"""Runs a model behind its input stage: the stage in the pool, the model on its device, beside each other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from polymux.core.dtype import DType
from polymux.core.errors import QueueFull
from polymux.inputs import InputStage, StagePool
from polymux.serving.errors import RequestError
from polymux.serving.kernel_runner import core_priority
from polymux.serving.runner import ModelRunner, TensorBuffer
from polymux.serving.signature import ModelSignature

__all__ = ["StagedRunner", "Urgency"]

_RETRY = ((b"retry-after", b"1"),)


@dataclass(frozen=True, slots=True)
class Urgency:
    """In which order a model's requests come to the stages.

    Attributes
    ----------
    priority : int or None
        Larger first; None: the request's own.
    slo_ns : int or None
        Time from its arrival within which a request without a deadline is to be answered.
    """

    priority: int | None = None
    slo_ns: int | None = None


class StagedRunner:
    """A `ModelRunner` that takes what the stage takes.

    Parameters
    ----------
    runner : ModelRunner
        Runs the model; becomes this object's.
    stage : InputStage
    pool : StagePool
        Runs the stage; stays the caller's.
    signature : ModelSignature
        What requests have: the stage's inputs first.
    order : tuple of str
        The inputs of the model, as `runner` takes them.
    share : bool
        Whether results are shared.
    urgency : Urgency
    """

    def __init__(
        self,
        runner: ModelRunner,
        stage: InputStage,
        pool: StagePool,
        signature: ModelSignature,
        order: tuple[str, ...],
        share: bool,
        urgency: Urgency,
    ) -> None:
        self._runner = runner
        self._stage = stage
        self._pool = pool
        self._names = tuple(signature.inputs)
        self._order = order
        self._share = share
        self._urgency = urgency

    def check_room(self) -> None:
        """Refuse a request before its body is read when too many wait for stages, or for the model.

        Raises
        ------
        RequestError
            503.
        """
        if self._pool.full:
            raise RequestError(
                503, f"{self._pool.waiting} requests wait for input stages; try again later", _RETRY
            )
        self._runner.check_room()

    def allocate(self, shape: tuple[int, ...], dtype: DType) -> TensorBuffer:
        """Return memory for an input."""
        return self._runner.allocate(shape, dtype)

    async def run(
        self, inputs: Sequence[TensorBuffer], *, priority: int, arrival_ns: int, deadline_ns: int | None
    ) -> Sequence[TensorBuffer]:
        """Run stage and model; see `ModelRunner.run`.

        Raises
        ------
        InvalidRequest
            When the stage does not take the input.
        PolymuxError
            When stage or model fail.
        RequestError
            503 when too many wait.
        """
        own = self._urgency
        due_ns = deadline_ns if deadline_ns is not None or own.slo_ns is None else arrival_ns + own.slo_ns
        raw = len(self._stage.inputs)
        try:
            future = self._pool.submit(
                self._stage,
                [
                    np.array(buffer.numpy()) for buffer in inputs[:raw]
                ],  # copies: requests come and go meanwhile
                share=self._share,
                priority=_level(priority) if own.priority is None else own.priority,
                due_ns=due_ns,
                expires_ns=deadline_ns,
            )
        except QueueFull as error:
            raise RequestError(503, str(error), _RETRY) from error
        results = await asyncio.wrap_future(future)
        given = dict(zip(self._names[raw:], inputs[raw:], strict=True))
        made: list[TensorBuffer] = []
        try:
            for param, array in zip(self._stage.outputs, results, strict=True):
                made.append(self._runner.allocate(array.shape, param.dtypes[0]))
                np.copyto(made[-1].numpy(), array)
                given[param.name] = made[-1]
            del results, array
            return await self._runner.run(
                [given[name] for name in self._order],
                priority=priority,
                arrival_ns=arrival_ns,
                deadline_ns=deadline_ns,
            )
        finally:
            for buffer in made:
                buffer.close()

    def close(self) -> None:
        """Unload the model."""
        self._runner.close()


def _level(priority: int) -> int:
    return core_priority(priority) if priority else 0
