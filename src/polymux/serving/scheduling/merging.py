"""Many requests as one task: their inputs one after the other in the batch dimension, and the outputs apart again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import numpy as np

from polymux.core.dtype import DType
from polymux.core.errors import (
    Cancelled,
    Closed,
    DeviceFailed,
    NoDevice,
    PolymuxError,
    QueueFull,
    Rejected,
    ServerGone,
)
from polymux.serving.runner import TensorBuffer

__all__ = ["Deliver", "Lane", "Tensors", "run_together"]

Tensors = Sequence[TensorBuffer]
"""Inputs or outputs of a request, in the model's order."""

Deliver = Callable[[int, "Tensors | PolymuxError"], None]
"""Told the outcome of a request by its place in the batch."""

_NOBODYS_FAULT = (Cancelled, Closed, DeviceFailed, NoDevice, QueueFull, Rejected, ServerGone)
"""Failures that no request caused: running each of them alone would fail as well."""


class Lane(Protocol):
    """Runs one task of a model at a time, on the units that the batch was given."""

    def allocate(self, shape: tuple[int, ...], dtype: DType) -> TensorBuffer:
        """Return memory for an input."""

    def run(self, inputs: Tensors) -> Awaitable[Tensors]:
        """Run the model; see `polymux.serving.runner.ModelRunner.run`."""

    def close(self) -> None:
        """Let go of the model here; a running task ends first."""


async def run_together(
    lane: Lane, dtypes: Sequence[DType], requests: Sequence[Tensors], batched: bool, deliver: Deliver
) -> PolymuxError | None:
    """Run requests of one model in as few tasks as their shapes allow.

    Requests whose shapes agree beyond the batch dimension are one task. When that fails, or cannot be made, each of
    them runs alone, so that a bad one fails by itself.

    Parameters
    ----------
    lane : Lane
        Runs the tasks.
    dtypes : sequence of DType
        Of the inputs.
    requests : sequence of Tensors
        The inputs of each request; they stay the caller's.
    batched : bool
        Whether the first dimension of every input and output is the batch.
    deliver : callable
        Called once for each request, with its outputs, which are then the caller's to close, or its error.

    Returns
    -------
    PolymuxError or None
        A failure that no request caused, after which the rest was given up.
    """
    undelivered = set(range(len(requests)))

    def settle(index: int, outcome: Tensors | PolymuxError) -> None:
        undelivered.discard(index)
        deliver(index, outcome)

    for group in _groups(requests, batched):
        error = await _run_group(lane, dtypes, requests, group, settle)
        if error is not None:
            for index in sorted(undelivered):
                deliver(index, error)
            return error
    return None


async def _run_group(
    lane: Lane, dtypes: Sequence[DType], requests: Sequence[Tensors], group: Sequence[int], deliver: Deliver
) -> PolymuxError | None:
    """Run requests that can be one task; an error is one that the others would have as well."""
    if len(group) > 1:
        error = await _merged(lane, dtypes, [requests[index] for index in group], group, deliver)
        if error is None or isinstance(error, _NOBODYS_FAULT):
            return error
    for index in group:
        try:
            deliver(index, await lane.run(requests[index]))
        except _NOBODYS_FAULT as error:
            return error
        except PolymuxError as error:
            deliver(index, error)
    return None


def _groups(requests: Sequence[Tensors], batched: bool) -> list[list[int]]:
    if not batched:
        return [[index] for index in range(len(requests))]
    groups: dict[tuple[tuple[int, ...], ...], list[int]] = {}
    for index, inputs in enumerate(requests):
        groups.setdefault(tuple(buffer.shape[1:] for buffer in inputs), []).append(index)
    return list(groups.values())


async def _merged(
    lane: Lane, dtypes: Sequence[DType], requests: Sequence[Tensors], places: Sequence[int], deliver: Deliver
) -> PolymuxError | None:
    """Run them as one task; an error means that none of them has been delivered."""
    counts = [inputs[0].shape[0] for inputs in requests]
    made: list[TensorBuffer] = []
    try:
        for position, dtype in enumerate(dtypes):
            arrays = [inputs[position].numpy() for inputs in requests]
            made.append(lane.allocate((sum(counts), *arrays[0].shape[1:]), dtype))
            np.concatenate(arrays, out=made[-1].numpy())
        outputs = await lane.run(made)
    except PolymuxError as error:
        return error
    finally:
        for buffer in made:
            buffer.close()
    if any(not buffer.shape or buffer.shape[0] != sum(counts) for buffer in outputs):
        for buffer in outputs:
            buffer.close()
        return PolymuxError("an output does not have the batch as its first dimension")
    shared = [_Shared(buffer, len(requests)) for buffer in outputs]
    start = 0
    for place, count in zip(places, counts, strict=True):
        deliver(place, [_Part(whole, start, start + count) for whole in shared])
        start += count
    return None


class _Shared:
    """An output of a batch, closed with the last of its parts."""

    def __init__(self, buffer: TensorBuffer, parts: int) -> None:
        self.array = buffer.numpy()
        self._buffer = buffer
        self._parts = parts

    def close_part(self) -> None:
        self._parts -= 1
        if self._parts == 0:
            del self.array
            self._buffer.close()


class _Part:
    """One request's part of an output, as a `TensorBuffer`."""

    def __init__(self, whole: _Shared, start: int, end: int) -> None:
        self._whole: _Shared | None = whole
        self._rows = slice(start, end)
        self.shape: tuple[int, ...] = (end - start, *whole.array.shape[1:])

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return the part, without a copy."""
        assert self._whole is not None, "it was closed"
        return self._whole.array[self._rows]

    def close(self) -> None:
        """Let go of it; the batch's memory returns with the last part."""
        whole, self._whole = self._whole, None
        if whole is not None:
            whole.close_part()
