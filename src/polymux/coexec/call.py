"""One call of an operation on arrays that lie in memory shared with the server, and the pieces of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polymux.client import Buffer, Queue, Task
from polymux.client.placed import PlacedArray
from polymux.coexec.operation import Array, Way
from polymux.coexec.units import Unit
from polymux.core.errors import InvalidRequest
from polymux.perfmodel.coexec.adapt import Chunk


@dataclass(frozen=True, slots=True)
class Call:
    """Arrays and the way in which they are split.

    Parameters
    ----------
    way : Way
    inputs, outputs : tuple of PlacedArray
        Each is a whole buffer.
    """

    way: Way
    inputs: tuple[PlacedArray, ...]
    outputs: tuple[PlacedArray, ...]

    def submit(self, queue: Queue, unit: Unit, chunk: Chunk) -> Piece:
        """Have a unit compute a piece.

        Notes
        -----
        A device that works on the host's memory gets the arrays themselves. Another one gets buffers with its part of
        what is split, copied here; what everybody needs is one buffer, of which each device has a copy once.
        """
        if unit.place.on_host:
            task = queue.submit(
                unit.kernel.name,
                [_buffer(array) for array in self.inputs],
                [_buffer(array) for array in self.outputs],
                **self._scalars(unit, chunk.first, chunk.count),
            )
            return Piece(task, (), ())
        return self._submit_apart(queue, unit, chunk)

    def _submit_apart(self, queue: Queue, unit: Unit, chunk: Chunk) -> Piece:
        way = self.way
        low = max(0, chunk.first - way.halo)
        high = min(way.problem.extent, chunk.first + chunk.count + way.halo)
        across = slice(chunk.across_first, chunk.across_first + chunk.across_count)
        wide = chunk.across_count == 0
        made: list[Buffer] = []
        inputs: list[Buffer] = []
        for at, array in enumerate(self.inputs):
            index = _index(array.ndim, way.inputs[at], slice(low, high))
            if not wide and way.across_inputs[at] is not None:
                index = _index(array.ndim, way.across_inputs[at], across)
            part = array[index]
            if part.shape == array.shape:
                inputs.append(_buffer(array))
            else:
                made.append(queue.array(part))
                inputs.append(made[-1])
        outputs: list[Buffer] = []
        targets: list[tuple[Array, tuple[slice, ...]]] = []
        for at, array in enumerate(self.outputs):
            axis = way.outputs[at]
            own = list(_index(array.ndim, axis, slice(low, high)))
            into = list(_index(array.ndim, axis, slice(chunk.first, chunk.first + chunk.count)))
            inner = _index(array.ndim, axis, slice(chunk.first - low, chunk.first - low + chunk.count))
            if not wide:
                own[way.across_outputs[at]] = into[way.across_outputs[at]] = across
            outputs.append(queue.empty(array[tuple(own)].shape, array.dtype))
            targets.append((array[tuple(into)], inner))
        task = queue.submit(
            unit.kernel.name, inputs, outputs, **self._scalars(unit, chunk.first - low, chunk.count)
        )
        return Piece(task, tuple(zip(outputs, targets, strict=True)), (*made, *outputs))

    def _scalars(self, unit: Unit, first: int, count: int) -> Mapping[str, Any]:
        way = self.way
        return {**way.scalars, **unit.scalars, way.first: first, way.count: count}


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece under way.

    Parameters
    ----------
    task : Task
    results : tuple
        Buffers whose content is to be joined, with where it goes and which part of the buffer that is.
    made : tuple of Buffer
        What it has for itself.
    """

    task: Task
    results: tuple[tuple[Buffer, tuple[Array, tuple[slice, ...]]], ...]
    made: tuple[Buffer, ...]

    def join(self) -> None:
        """Put what was computed apart where it belongs; raises what the task failed with."""
        self.task.result()
        for buffer, (target, inner) in self.results:
            target[...] = buffer.numpy()[inner]

    def drop(self) -> None:
        """Give its memory back."""
        for buffer in self.made:
            buffer.close()


def _buffer(array: PlacedArray) -> Buffer:
    assert array.buffer is not None, "the arrays of a call lie in buffers"
    return array.buffer


def _index(ndim: int, axis: int | None, part: slice) -> tuple[slice, ...]:
    return tuple(part if at == axis else slice(None) for at in range(ndim))


def contents(arrays: Sequence[Array]) -> tuple[tuple[tuple[int, ...], str], ...]:
    """Shapes and dtypes, on which plans depend."""
    return tuple((array.shape, array.dtype.str) for array in arrays)


def check_out(out: Sequence[Array] | None, specs: Sequence[tuple[tuple[int, ...], np.dtype[Any]]]) -> None:
    """Check the arrays that a caller gives for the results.

    Raises
    ------
    InvalidRequest
        For another number, shape or dtype.
    """
    if out is None:
        return
    if len(out) != len(specs):
        raise InvalidRequest(f"out has {len(out)} arrays; give {len(specs)}")
    for array, (shape, dtype) in zip(out, specs, strict=True):
        if array.shape != shape or array.dtype != dtype:
            raise InvalidRequest(f"out is {array.dtype}{list(array.shape)}; give {dtype}{list(shape)}")
