"""A model as a kernel of the core: registration, and tasks on a queue."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from polymux.client import Buffer, Client
from polymux.core.dtype import DType
from polymux.core.errors import OutputTooSmall, PolymuxError, TaskFailed
from polymux.core.implementation import OnnxModel
from polymux.core.kernel_spec import KernelSpec
from polymux.serving.config_check import complete
from polymux.serving.errors import ModelLoadError
from polymux.serving.model_config_pb2 import ModelConfig
from polymux.serving.models import LoadedModel
from polymux.serving.output_sizes import OutputSizes
from polymux.serving.runner import ModelRunner, TensorBuffer
from polymux.serving.signature import ModelSignature
from polymux.serving.versions import register_versions, wants_openvino

__all__ = ["KernelRunner", "RegisteredModel", "register_model"]

_log = logging.getLogger(__name__)

_GROWTH = 4


@dataclass(frozen=True, slots=True)
class RegisteredModel:
    """A version of a model that the core knows as a kernel.

    Attributes
    ----------
    config : ModelConfig
        Complete.
    signature : ModelSignature
        What requests are checked against.
    spec : KernelSpec
        The kernel, as the server described it.
    parts : tuple of KernelSpec
        Kernels that run one after the other in its place, where the model is cut; their parameters have the names of
        the tensors that they hand on.
    """

    config: ModelConfig
    signature: ModelSignature
    spec: KernelSpec
    parts: tuple[KernelSpec, ...] = ()

    def loaded(self, runner: ModelRunner) -> LoadedModel:
        """Put it together with what runs it."""
        names = tuple(param.name for param in self.spec.outputs)
        return LoadedModel(self.config, self.signature, runner, names)


def register_model(
    client: Client, name: str, version: int, path: Path, config: ModelConfig
) -> RegisteredModel:
    """Register one version of a model as a kernel; the parameters are those of `Loader.load`.

    Raises
    ------
    ModelLoadError
        With the reason, when the file is no model, or the configuration contradicts it.
    """
    if not path.is_file():
        raise ModelLoadError(f"there is no file {path}")
    kernel = f"{name}/{version}"
    try:
        plain = path.resolve() if wants_openvino(client) else None
        spec = register_versions(client, kernel, OnnxModel(str(path.resolve())), plain)
        completed, signature = complete(config, name, spec)
    except PolymuxError as error:
        raise ModelLoadError(str(error)) from error
    return RegisteredModel(completed, signature, spec)


class KernelRunner:
    """Runs a model that is registered as a kernel.

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
    sizes : OutputSizes, optional
        What is known of the outputs' sizes, for runners of the same model to have in common.
    capacity : int
        Tasks in flight at most.

    Raises
    ------
    ModelLoadError
        If there is no such device or stream.
    """

    def __init__(
        self,
        client: Client,
        spec: KernelSpec,
        device: str | None = None,
        *,
        stream: str | None = None,
        sizes: OutputSizes | None = None,
        capacity: int = 1024,
    ) -> None:
        self._spec = spec
        self._sizes = OutputSizes(spec.outputs) if sizes is None else sizes
        try:
            # A full ring is the client's answer 503, never a front end that stands still.
            self._queue = client.queue(
                spec.name, device=device, stream=stream, capacity=capacity, on_full="raise"
            )
        except PolymuxError as error:
            raise ModelLoadError(str(error)) from error

    def warm_up(self) -> None:
        """Run the model once on zeros: the first run takes memory that later ones find.

        Extents that are free are 1, which some models do not take: these have their first run later.
        """
        inputs: list[Buffer] = []
        try:
            for param in self._spec.inputs:
                shape = tuple(1 if extent is None else extent for extent in param.shape or (1,))
                inputs.append(self._queue.zeros(shape, param.dtypes[0].name_short))
            self._warm_up(inputs)
        except TaskFailed as error:
            _log.debug("%s does not run on zeros: %s", self._spec.name, error)
        finally:
            close_all(inputs)

    def _warm_up(self, inputs: Sequence[Buffer]) -> None:
        close_all(self._run_now(self._spec, self._sizes, inputs))

    def _run_now(self, spec: KernelSpec, sizes: OutputSizes, inputs: Sequence[Buffer]) -> list[Buffer]:
        """Run a kernel once and wait for it, in a thread that may."""
        nbytes = sum(buffer.nbytes for buffer in inputs)
        outputs = self._outputs(spec, sizes.shapes(tuple(buffer.shape for buffer in inputs), nbytes))
        try:
            self._queue.submit(spec.name, inputs, outputs).wait()
        except BaseException:
            close_all(outputs)
            raise
        return outputs

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
            When the model failed.
        QueueFull, SegmentFull
            When there is no room for the task or its outputs.
        """
        buffers = cast("Sequence[Buffer]", inputs)  # they come from `allocate`
        outputs = await self._run(self._spec, self._sizes, buffers, hints_of(priority, deadline_ns))
        await bring_home(outputs)
        return outputs

    def close(self) -> None:
        """Close the queue; its running tasks end first."""
        self._queue.close()

    async def _run(
        self, spec: KernelSpec, sizes: OutputSizes, inputs: Sequence[Buffer], hints: Mapping[str, int]
    ) -> Sequence[Buffer]:
        """Run a kernel once, again with larger outputs when they were too small."""
        signature = tuple(buffer.shape for buffer in inputs)
        nbytes = sum(buffer.nbytes for buffer in inputs)
        shapes = sizes.shapes(signature, nbytes)
        for attempts_left in reversed(range(len(shapes) + 1)):
            outputs = self._outputs(spec, shapes)
            try:
                await self._queue.submit(spec.name, inputs, outputs, **hints)
            except OutputTooSmall as error:
                needed = _needed_nbytes(error, outputs, spec)
                close_all(outputs)
                if not attempts_left:
                    raise
                sizes.learn(signature, nbytes, needed)
                shapes = sizes.shapes(signature, nbytes)
            except BaseException:
                close_all(outputs)
                raise
            else:
                sizes.learn(signature, nbytes, [buffer.nbytes for buffer in outputs])
                return outputs
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _outputs(self, spec: KernelSpec, shapes: Sequence[tuple[int, ...]]) -> list[Buffer]:
        outputs: list[Buffer] = []
        try:
            for shape, param in zip(shapes, spec.outputs, strict=True):
                outputs.append(self.allocate(shape, param.dtypes[0]))
        except BaseException:
            close_all(outputs)
            raise
        return outputs


def hints_of(priority: int, deadline_ns: int | None) -> dict[str, int]:
    """Write what a request wishes as hints of a task."""
    hints: dict[str, int] = {}
    if priority:
        hints["priority"] = core_priority(priority)
    if deadline_ns is not None:
        hints["deadline_ns"] = deadline_ns
    return hints


async def bring_home(outputs: Sequence[Buffer]) -> None:
    """Fetch outputs that are on a device with memory of its own: in a thread, not in the event loop.

    They are closed when that fails.
    """
    try:
        for buffer in outputs:
            if buffer.away:
                await asyncio.to_thread(buffer.bring_home)
    except BaseException:
        close_all(outputs)
        raise


def core_priority(level: int) -> int:
    """Translate a request's priority (1 highest, greater numbers lower) to the core's (greater runs first).

    The core's range is -128 to 127; levels beyond 256 are all lowest.
    """
    return max(-128, 128 - level)


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


def close_all(buffers: Iterable[Buffer]) -> None:
    """Give the memory of buffers back."""
    for buffer in buffers:
        buffer.close()
