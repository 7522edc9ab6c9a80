"""A model that was cut: each request is a chain of tasks, and whoever is more urgent runs between them."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import cast

from polymux.client import Buffer, Client, Task
from polymux.core.errors import OutputTooSmall, QueueFull, SegmentFull, TaskFailed
from polymux.core.kernel_spec import KernelSpec
from polymux.serving.kernel_runner import KernelRunner, RegisteredModel, bring_home, close_all, hints_of
from polymux.serving.output_sizes import OutputSizes, Shapes
from polymux.serving.runner import TensorBuffer

__all__ = ["PartsRunner", "open_runner"]

_REMEMBERED = 256
"""Combinations of input shapes for which the shapes between the parts are kept."""
_CAPACITY, _MOST_CAPACITY = 1024, 65536


def open_runner(
    client: Client,
    model: RegisteredModel,
    device: str | None = None,
    *,
    stream: str | None = None,
    sizes: OutputSizes | None = None,
) -> KernelRunner:
    """Make what runs a model, whole or in parts; the parameters are those of `KernelRunner`.

    Raises
    ------
    ModelLoadError
        If there is no such device or stream.
    """
    if model.parts:
        return PartsRunner(client, model, device, stream=stream)
    return KernelRunner(client, model.spec, device, stream=stream, sizes=sizes)


class PartsRunner(KernelRunner):
    """Runs a model whose parts are registered as kernels.

    Parameters
    ----------
    client : Client
    model : RegisteredModel
        With parts.
    device, stream : str or None
        As for `KernelRunner`.

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
        model: RegisteredModel,
        device: str | None = None,
        *,
        stream: str | None = None,
    ) -> None:
        super().__init__(client, model.spec, device, stream=stream, capacity=_capacity(len(model.parts)))
        self._stages = [_Stage(spec) for spec in model.parts]
        self._inputs = [param.name for param in model.spec.inputs]
        self._outputs_of_model = [param.name for param in model.spec.outputs]
        self._dtypes = {param.name: param.dtypes[0] for stage in self._stages for param in stage.spec.outputs}
        self._last_use = {name: at for at, stage in enumerate(self._stages) for name in stage.reads}
        self._known: OrderedDict[Shapes, Mapping[str, tuple[int, ...]]] = OrderedDict()
        self._between: dict[str, Buffer] = {}
        self._between_shapes: Mapping[str, tuple[int, ...]] = {}
        self._varies = False

    async def run(
        self,
        inputs: Sequence[TensorBuffer],
        *,
        priority: int = 0,
        arrival_ns: int = 0,  # noqa: ARG002
        deadline_ns: int | None = None,
    ) -> Sequence[Buffer]:
        """Run the parts one after the other; see `ModelRunner.run`.

        Raises
        ------
        TaskFailed
            When a part failed.
        QueueFull, SegmentFull
            When there is no room for the tasks or their outputs.
        """
        buffers = cast("Sequence[Buffer]", inputs)  # they come from `allocate`
        hints = hints_of(priority, deadline_ns)
        signature = tuple(buffer.shape for buffer in buffers)
        shapes = None if self._varies else self._known.get(signature)
        outputs = None if shapes is None else await self._at_once(buffers, shapes, hints)
        if outputs is None:
            outputs = await self._one_by_one(signature, buffers, hints)
        await bring_home(outputs)
        return outputs

    def close(self) -> None:
        """Close the queue; its running tasks end first."""
        super().close()
        self._let_go()

    async def _one_by_one(
        self, signature: Shapes, inputs: Sequence[Buffer], hints: Mapping[str, int]
    ) -> list[Buffer]:
        """Wait for each part before the next one is submitted, and learn the shapes."""
        values = dict(zip(self._inputs, inputs, strict=True))
        made: dict[str, Buffer] = {}
        shapes: dict[str, tuple[int, ...]] = {}
        try:
            for at, stage in enumerate(self._stages):
                outputs = await self._run(
                    stage.spec, stage.sizes, [values[name] for name in stage.reads], hints
                )
                its = dict(zip(stage.writes, outputs, strict=True))
                values.update(its)
                made.update(its)
                shapes.update({name: buffer.shape for name, buffer in its.items()})
                self._drop_used(made, at)
        except BaseException:
            close_all(made.values())
            raise
        self._known[signature] = shapes
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return [made[name] for name in self._outputs_of_model]

    async def _at_once(
        self, inputs: Sequence[Buffer], shapes: Mapping[str, tuple[int, ...]], hints: Mapping[str, int]
    ) -> list[Buffer] | None:
        """Submit all parts; None when that did not do, since a shape was another one or there was no room between."""
        if self._queue.in_flight + len(self._stages) > self._queue.capacity:
            raise QueueFull(
                f"{self._queue.in_flight} tasks are in flight; there is no room for {len(self._stages)} more"
            )
        try:
            between = self._buffers_between(shapes)
        except SegmentFull:
            return None  # one part after the other needs less at a time
        outputs: dict[str, Buffer] = {}
        try:
            for name in self._outputs_of_model:
                outputs[name] = self.allocate(shapes[name], self._dtypes[name])
            values = {**dict(zip(self._inputs, inputs, strict=True)), **between, **outputs}
            tasks = [
                self._queue.submit(
                    stage.spec.name,
                    [values[name] for name in stage.reads],
                    [values[name] for name in stage.writes],
                    **hints,
                )
                for stage in self._stages
            ]
            await _all_ended(tasks)
        except OutputTooSmall:
            pass
        except BaseException:
            close_all(outputs.values())
            raise
        else:
            if all(values[name].shape == shapes[name] for stage in self._stages for name in stage.writes):
                return list(outputs.values())
        close_all(outputs.values())
        self._varies = True
        self._let_go()
        return None

    def _buffers_between(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Buffer]:
        """Return the buffers for what is handed on; those of other shapes go when their tasks have ended."""
        if self._between_shapes is not shapes:
            self._let_go()
            try:
                for name, dtype in self._dtypes.items():
                    if name not in self._outputs_of_model:
                        self._between[name] = self.allocate(shapes[name], dtype)
            except BaseException:
                self._let_go()
                raise
            self._between_shapes = shapes
        return self._between

    def _let_go(self) -> None:
        close_all(self._between.values())
        self._between, self._between_shapes = {}, {}

    def _drop_used(self, made: dict[str, Buffer], at: int) -> None:
        """Give back what no part behind this one needs."""
        for name in [name for name in made if self._last_use.get(name, -1) <= at]:
            if name not in self._outputs_of_model:
                made.pop(name).close()

    def _warm_up(self, inputs: Sequence[Buffer]) -> None:
        values = dict(zip(self._inputs, inputs, strict=True))
        made: list[Buffer] = []
        try:
            for stage in self._stages:
                outputs = self._run_now(stage.spec, stage.sizes, [values[name] for name in stage.reads])
                made += outputs
                values.update(zip(stage.writes, outputs, strict=True))
        finally:
            close_all(made)


class _Stage:
    """A part: its kernel, the tensors that it takes and gives, and how large these are."""

    def __init__(self, spec: KernelSpec) -> None:
        self.spec = spec
        self.reads = [param.name for param in spec.inputs]
        self.writes = [param.name for param in spec.outputs]
        self.sizes = OutputSizes(spec.outputs)


async def _all_ended(tasks: Sequence[Task]) -> None:
    """Wait for tasks of one queue; the error is that of the first one that failed."""
    with contextlib.suppress(TaskFailed):
        await tasks[-1]
    for task in tasks:
        task.result()


def _capacity(parts: int) -> int:
    """Return how many tasks a queue is to hold, so that it holds as many requests as one of a whole model."""
    return min(_MOST_CAPACITY, _CAPACITY << (parts - 1).bit_length())
