"""A model as tasks on a queue: one kernel, or a chain of them where the model is cut.

Whoever is more urgent runs between the tasks of a chain.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from polymux.client import Buffer, Client, Task
from polymux.core.dtype import DType
from polymux.core.errors import OutputTooSmall, PolymuxError, QueueFull, SegmentFull, TaskFailed
from polymux.core.kernel_spec import KernelSpec
from polymux.serving.errors import ModelLoadError
from polymux.serving.handed_on import HandedOn
from polymux.serving.output_sizes import OutputSizes, Shapes
from polymux.serving.runner import TensorBuffer

__all__ = ["KernelRunner", "core_priority"]

_log = logging.getLogger(__name__)

_GROWTH = 4
_REMEMBERED = 256
"""Combinations of input shapes for which the shapes between the parts are kept."""
_CAPACITY, _MOST_CAPACITY = 1024, 65536


class KernelRunner:
    """Runs a model that is registered as a kernel, or whose parts are.

    Parameters
    ----------
    client : Client
        Connection to the core; stays the caller's.
    spec : KernelSpec
        The kernel, as the server described it.
    device : str or None
        Device for the model's queue; None: the server's choice.
    stream : str or None
        The stream of it to which the queue is pinned; None: the server's choice.
    parts : sequence of KernelSpec
        Kernels that run one after the other in its place; their parameters have the names of the tensors that they
        hand on. Empty: it is not cut.
    sizes : OutputSizes, optional
        What is known of the sizes of the outputs of `spec`, for runners of the same model to have in common.

    Raises
    ------
    ModelLoadError
        If there is no such device or stream.

    Notes
    -----
    The first request with inputs of some shapes runs part by part and shows the shapes of what is handed on. Later ones
    are submitted at once, all parts of a request in a row; what is handed on lies in buffers that all of them have in
    common, since the tasks of a queue run in order. A model that hands on other shapes for other values runs part by
    part for ever.
    """

    def __init__(
        self,
        client: Client,
        spec: KernelSpec,
        device: str | None = None,
        *,
        stream: str | None = None,
        parts: Sequence[KernelSpec] = (),
        sizes: OutputSizes | None = None,
    ) -> None:
        self._spec = spec
        self._stages = [_Stage(part) for part in parts] or [_Stage(spec, sizes)]
        self._inputs = [param.name for param in spec.inputs]
        self._outputs = [param.name for param in spec.outputs]
        self._dtypes = {param.name: param.dtypes[0] for stage in self._stages for param in stage.spec.outputs}
        self._last_use = {name: at for at, stage in enumerate(self._stages) for name in stage.reads}
        self._known: OrderedDict[Shapes, Mapping[str, tuple[int, ...]]] = OrderedDict()
        self._at_once = len(self._stages) > 1
        between = {name: dtype for name, dtype in self._dtypes.items() if name not in self._outputs}
        self._between = HandedOn(between, self.allocate)
        try:
            # A full ring is the client's answer 503, never a front end that stands still.
            self._queue = client.queue(
                spec.name,
                device=device,
                stream=stream,
                capacity=_capacity(len(self._stages)),
                on_full="raise",
            )
        except PolymuxError as error:
            raise ModelLoadError(str(error)) from error

    def warm_up(self) -> None:
        """Run the model once on zeros: the first run takes memory that later ones find.

        Extents that are free are 1, which some models do not take: these have their first run later.
        """
        made: list[Buffer] = []
        values: dict[str, Buffer] = {}
        try:
            for param in self._spec.inputs:
                shape = tuple(1 if extent is None else extent for extent in param.shape or (1,))
                made.append(self._queue.zeros(shape, param.dtypes[0].name_short))
                values[param.name] = made[-1]
            for stage in self._stages:
                outputs = self._run_now(stage, [values[name] for name in stage.reads])
                made += outputs
                values.update(zip(stage.writes, outputs, strict=True))
        except TaskFailed as error:
            _log.debug("%s does not run on zeros: %s", self._spec.name, error)
        finally:
            _close_all(made)

    def check_room(self) -> None:
        """Let every request come: the ring of the queue is the bound."""

    def allocate(self, shape: tuple[int, ...], dtype: DType) -> Buffer:
        """Return memory for an input."""
        return self._queue.empty(shape, dtype.name_short)

    async def run(
        self,
        inputs: Sequence[TensorBuffer],
        *,
        priority: int = 0,
        arrival_ns: int = 0,  # noqa: ARG002
        deadline_ns: int | None = None,
    ) -> Sequence[Buffer]:
        """Run the model; see `ModelRunner.run`.

        Raises
        ------
        TaskFailed
            When the model, or a part of it, failed.
        QueueFull, SegmentFull
            When there is no room for the tasks or their outputs.
        """
        buffers = cast("Sequence[Buffer]", inputs)  # they come from `allocate`
        hints = _hints(priority, deadline_ns)
        signature = tuple(buffer.shape for buffer in buffers)
        shapes = self._known.get(signature) if self._at_once else None
        outputs = None if shapes is None else await self._in_a_row(buffers, shapes, hints)
        if outputs is None:
            outputs = await self._one_by_one(signature, buffers, hints)
        await _bring_home(outputs)
        return outputs

    def close(self) -> None:
        """Close the queue; its running tasks end first."""
        self._queue.close()
        self._between.close()

    async def _one_by_one(
        self, signature: Shapes, inputs: Sequence[Buffer], hints: Mapping[str, int]
    ) -> list[Buffer]:
        """Wait for each part before the next one is submitted, and learn the shapes."""
        values = dict(zip(self._inputs, inputs, strict=True))
        made: dict[str, Buffer] = {}
        shapes: dict[str, tuple[int, ...]] = {}
        try:
            for at, stage in enumerate(self._stages):
                outputs = await self._run_stage(stage, [values[name] for name in stage.reads], hints)
                its = dict(zip(stage.writes, outputs, strict=True))
                values.update(its)
                made.update(its)
                shapes.update({name: buffer.shape for name, buffer in its.items()})
                self._drop_used(made, at)
        except BaseException:
            _close_all(made.values())
            raise
        if self._at_once:
            self._known[signature] = shapes
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return [made[name] for name in self._outputs]

    async def _in_a_row(
        self, inputs: Sequence[Buffer], shapes: Mapping[str, tuple[int, ...]], hints: Mapping[str, int]
    ) -> list[Buffer] | None:
        """Submit all parts; None when that did not do, since a shape was another one or there was no room between."""
        if self._queue.in_flight + len(self._stages) > self._queue.capacity:
            raise QueueFull(
                f"{self._queue.in_flight} tasks are in flight; there is no room for {len(self._stages)} more"
            )
        try:
            between = self._between.of(shapes)
        except SegmentFull:
            return None  # one part after the other needs less at a time
        outputs: dict[str, Buffer] = {}
        try:
            for name in self._outputs:
                outputs[name] = self.allocate(shapes[name], self._dtypes[name])
            values = {**dict(zip(self._inputs, inputs, strict=True)), **between, **outputs}
            await _all_ended([self._submit(stage, values, hints) for stage in self._stages])
        except OutputTooSmall:
            pass
        except TaskFailed:
            # It may be no fault of the request: a part was handed on another shape than its outputs were made for.
            if self._as_known({**between, **outputs}, shapes):
                _close_all(outputs.values())
                raise
        except BaseException:
            _close_all(outputs.values())
            raise
        else:
            if self._as_known({**between, **outputs}, shapes):
                return list(outputs.values())
        _close_all(outputs.values())
        self._at_once = False
        self._between.close()
        return None

    def _as_known(self, values: Mapping[str, Buffer], shapes: Mapping[str, tuple[int, ...]]) -> bool:
        """Whether all parts have given the shapes that they were known to give.

        A buffer that was closed meanwhile, or belongs to a request that found it out first, tells nothing.
        """
        if not self._at_once or any(buffer.closed for buffer in values.values()):
            return False
        return all(values[name].shape == shapes[name] for stage in self._stages for name in stage.writes)

    def _submit(self, stage: _Stage, values: Mapping[str, Buffer], hints: Mapping[str, int]) -> Task:
        reads, writes = [values[name] for name in stage.reads], [values[name] for name in stage.writes]
        return self._queue.submit(stage.spec.name, reads, writes, **hints)

    def _drop_used(self, made: dict[str, Buffer], at: int) -> None:
        """Give back what no part behind this one needs."""
        for name in [name for name in made if self._last_use.get(name, -1) <= at]:
            if name not in self._outputs:
                made.pop(name).close()

    def _run_now(self, stage: _Stage, inputs: Sequence[Buffer]) -> list[Buffer]:
        """Run a kernel once and wait for it, in a thread that may."""
        nbytes = sum(buffer.nbytes for buffer in inputs)
        outputs = self._allocate(stage, stage.sizes.shapes(tuple(buffer.shape for buffer in inputs), nbytes))
        try:
            self._queue.submit(stage.spec.name, inputs, outputs).wait()
        except BaseException:
            _close_all(outputs)
            raise
        return outputs

    async def _run_stage(
        self, stage: _Stage, inputs: Sequence[Buffer], hints: Mapping[str, int]
    ) -> Sequence[Buffer]:
        """Run a kernel once, again with larger outputs when they were too small."""
        sizes = stage.sizes
        signature = tuple(buffer.shape for buffer in inputs)
        nbytes = sum(buffer.nbytes for buffer in inputs)
        shapes = sizes.shapes(signature, nbytes)
        for attempts_left in reversed(range(len(shapes) + 1)):
            outputs = self._allocate(stage, shapes)
            try:
                await self._queue.submit(stage.spec.name, inputs, outputs, **hints)
            except OutputTooSmall as error:
                needed = _needed_nbytes(error, outputs, stage.spec)
                _close_all(outputs)
                if not attempts_left:
                    raise
                sizes.learn(signature, nbytes, needed)
                shapes = sizes.shapes(signature, nbytes)
            except BaseException:
                _close_all(outputs)
                raise
            else:
                sizes.learn(signature, nbytes, [buffer.nbytes for buffer in outputs])
                return outputs
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _allocate(self, stage: _Stage, shapes: Sequence[tuple[int, ...]]) -> list[Buffer]:
        outputs: list[Buffer] = []
        try:
            for shape, param in zip(shapes, stage.spec.outputs, strict=True):
                outputs.append(self.allocate(shape, param.dtypes[0]))
        except BaseException:
            _close_all(outputs)
            raise
        return outputs


class _Stage:
    """A kernel, the tensors that it takes and gives, and how large these are."""

    def __init__(self, spec: KernelSpec, sizes: OutputSizes | None = None) -> None:
        self.spec = spec
        self.reads = [param.name for param in spec.inputs]
        self.writes = [param.name for param in spec.outputs]
        self.sizes = OutputSizes(spec.outputs) if sizes is None else sizes


def core_priority(level: int) -> int:
    """Translate a request's priority (1 highest, greater numbers lower) to the core's (greater runs first).

    The core's range is -128 to 127; levels beyond 256 are all lowest.
    """
    return max(-128, 128 - level)


def _hints(priority: int, deadline_ns: int | None) -> dict[str, int]:
    """Write what a request wishes as hints of a task."""
    hints: dict[str, int] = {}
    if priority:
        hints["priority"] = core_priority(priority)
    if deadline_ns is not None:
        hints["deadline_ns"] = deadline_ns
    return hints


async def _bring_home(outputs: Sequence[Buffer]) -> None:
    """Fetch outputs that are on a device with memory of its own: in a thread, not in the event loop.

    They are closed when that fails.
    """
    try:
        for buffer in outputs:
            if buffer.away:
                await asyncio.to_thread(buffer.bring_home)
    except BaseException:
        _close_all(outputs)
        raise


async def _all_ended(tasks: Sequence[Task]) -> None:
    """Wait for tasks of one queue; the error is that of the first one that failed."""
    with contextlib.suppress(TaskFailed):
        await tasks[-1]
    for task in tasks:
        task.result()


def _needed_nbytes(error: OutputTooSmall, outputs: Sequence[Buffer], spec: KernelSpec) -> list[int]:
    """Return what each output takes at least, by the failure, which names one output."""
    needed: list[int] = []
    for buffer, param in zip(outputs, spec.outputs, strict=True):
        if error.needed_nbytes is None:
            needed.append(buffer.nbytes * _GROWTH)
        elif param.name == error.output:
            needed.append(max(buffer.nbytes, error.needed_nbytes))
        else:
            needed.append(buffer.nbytes)
    return needed


def _close_all(buffers: Iterable[Buffer]) -> None:
    """Give the memory of buffers back."""
    for buffer in buffers:
        buffer.close()


def _capacity(parts: int) -> int:
    """Return how many tasks a queue is to hold, so that it holds as many requests as one of a whole model."""
    return min(_MOST_CAPACITY, _CAPACITY << (parts - 1).bit_length())
