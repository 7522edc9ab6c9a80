"""One call of an operation on arrays that lie in memory shared with the server, and the pieces of it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polymux.client import Buffer, Client, Queue, Task
from polymux.client.placed import PlacedArray
from polymux.coexec.operation import Array, Operation, Way
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


def call_key(
    operation: Operation, arrays: Sequence[Array], parameters: Mapping[str, Any], *further: Hashable
) -> Hashable:
    """Make what is equal for calls that are split the same way: of the operation's class, on such arrays.

    Raises
    ------
    InvalidRequest
        For a parameter that cannot be compared.
    """
    own = getattr(operation, "__dict__", {})
    shapes = tuple((array.shape, array.dtype.str) for array in arrays)
    return (
        type(operation),
        tuple((name, _fixed(name, own[name])) for name in sorted(own)),
        shapes,
        tuple((name, _fixed(name, parameters[name])) for name in sorted(parameters)),
        *further,
    )


def _fixed(name: str, value: Any) -> Hashable:
    """Make what compares like a value and can be looked up; 1, 1.0 and True are different scalars of a kernel."""
    if isinstance(value, (list, tuple)):
        return type(value), tuple(_fixed(name, item) for item in value)
    if isinstance(value, Mapping):
        return type(value), tuple((key, _fixed(name, item)) for key, item in value.items())
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return type(value), value.shape, value.dtype.str, value.tobytes()
    try:
        hash(value)
    except TypeError:
        raise InvalidRequest(
            f"{name}={value!r:.60} is a {type(value).__name__}, by which calls cannot be told apart; give numbers,"
            " strings, lists or arrays of them"
        ) from None
    return type(value), value


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


def give_out(out: Sequence[Array] | None, at: int, result: Array) -> Array:
    """Put a result where the caller wants it."""
    if out is None:
        return result
    if out[at] is not result:
        out[at][...] = result
    return out[at]


def place_out(
    client: Client, out: Sequence[Array] | None, at: int, inputs: Sequence[Array]
) -> PlacedArray | None:
    """Find where a result can be computed right where the caller wants it; None: not there."""
    given = None if out is None else out[at]
    if not isinstance(given, PlacedArray):
        return None
    buffer = given.whole()
    apart = not any(np.may_share_memory(given, array) for array in inputs)
    return given if buffer is not None and buffer.client is client and apart else None
