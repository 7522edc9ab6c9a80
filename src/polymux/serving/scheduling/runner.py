"""What the front end calls for a model whose requests are scheduled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

import numpy as np

from polymux.core.dtype import DType
from polymux.core.serving.model import ModelName
from polymux.core.task_view import shape_nbytes
from polymux.serving.errors import RequestError
from polymux.serving.runner import TensorBuffer
from polymux.serving.scheduling.room import RoomOf
from polymux.serving.scheduling.scheduler import Scheduler
from polymux.serving.scheduling.settings import ModelSettings

__all__ = ["Memory", "ScheduledRunner"]

_RETRY = ((b"retry-after", b"1"),)


class Memory(Protocol):
    """Where inputs lie."""

    def allocate(self, shape: tuple[int, ...], dtype: DType) -> TensorBuffer:
        """Return memory for an input."""


class ScheduledRunner:
    """A `ModelRunner` whose requests wait until the policy puts them into a batch.

    Parameters
    ----------
    scheduler : Scheduler
    name : ModelName
        The model as the scheduler knows it.
    settings : ModelSettings
    batched : bool
        Whether the first dimension of its tensors is the batch.
    memory : Memory
        Allocates inputs.
    room : RoomOf
        Bounds them.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        name: ModelName,
        settings: ModelSettings,
        batched: bool,
        memory: Memory,
        room: RoomOf,
    ) -> None:
        self._scheduler = scheduler
        self._name = name
        self._settings = settings
        self._batched = batched
        self._memory = memory
        self._room = room

    def check_room(self) -> None:
        """Refuse a request before its body is read when too many wait already.

        Raises
        ------
        RequestError
            503.
        """
        if problem := self._room.full:
            self._scheduler.statistics.refused(self._name)
            raise RequestError(503, f"model '{self._name}': {problem}; try again later", _RETRY)

    def allocate(self, shape: tuple[int, ...], dtype: DType) -> TensorBuffer:
        """Return memory for an input.

        Raises
        ------
        RequestError
            503 when the inputs of waiting requests take all that this model may have.
        SegmentFull
            When there is no memory at all.
        """
        nbytes = shape_nbytes(shape, dtype)
        if not self._room.take(nbytes):
            self._scheduler.statistics.refused(self._name)
            message = (
                f"model '{self._name}': the requests that wait take all memory for inputs; try again later"
            )
            raise RequestError(503, message, _RETRY)
        try:
            return _Input(self._memory.allocate(shape, dtype), self._room, nbytes)
        except BaseException:
            self._room.give_back(nbytes)
            raise

    async def run(
        self,
        inputs: Sequence[TensorBuffer],
        *,
        priority: int,  # noqa: ARG002
        arrival_ns: int,
        deadline_ns: int | None,
    ) -> Sequence[TensorBuffer]:
        """Wait for a batch and for the model; see `ModelRunner.run`. The priority that counts is the model's.

        Raises
        ------
        RequestError
            503 with ``Retry-After``, when the policy refuses the request.
        """
        self.check_room()
        buffers = [cast("_Input", buffer).buffer for buffer in inputs]  # they come from `allocate`
        items = buffers[0].shape[0] if self._batched else 1
        deadline = arrival_ns + self._settings.slo_ns if deadline_ns is None else deadline_ns
        self._room.waiting += 1
        try:
            return await self._scheduler.answer(
                self._name, buffers, items, arrival_ns, deadline, expires=deadline_ns is not None
            )
        finally:
            self._room.waiting -= 1

    def close(self) -> None:
        """Do nothing: the scheduler lets go of all models together."""


class _Input:
    """An input whose memory is counted."""

    def __init__(self, buffer: TensorBuffer, room: RoomOf, nbytes: int) -> None:
        self.buffer = buffer
        self._room = room
        self._nbytes = nbytes

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor."""
        return self.buffer.shape

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return it as an array, without a copy."""
        return self.buffer.numpy()

    def close(self) -> None:
        """Give the memory back; a second call does nothing."""
        self._room.give_back(self._nbytes)
        self._nbytes = 0
        self.buffer.close()
