"""Models with layers that all devices compute together: taken apart around these, and run piece by piece."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from threading import Condition
from typing import Any, cast

from polymux.client import Buffer, Client
from polymux.client.model_versions import register_versions
from polymux.client.placed import placed
from polymux.coexec import Session
from polymux.coexec.nodes import SessionNode
from polymux.core.dtype import DType
from polymux.core.errors import Closed, PolymuxError
from polymux.core.implementation import OnnxModel
from polymux.onnxgraph.file import load_model, save_model
from polymux.onnxgraph.heavy import DOMAIN, HeavyNode, has_heavy_nodes, plain, take_apart
from polymux.process_folder import ProcessFolder
from polymux.serving.errors import ModelLoadError
from polymux.serving.kernel_runner import KernelRunner
from polymux.serving.registered_model import RegisteredModel
from polymux.serving.runner import TensorBuffer

__all__ = ["HeavyLayers", "HeavyRunner", "TakenApart"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TakenApart:
    """A model with marked layers.

    Attributes
    ----------
    path : pathlib.Path
        The same model in ONNX' own nodes, which runs on one device.
    pieces : tuple
        What runs one after the other instead: marked nodes, and files of what lies between, with inputs and outputs.
    """

    path: Path
    pieces: tuple[HeavyNode | tuple[Path, tuple[str, ...], tuple[str, ...]], ...]


class HeavyLayers:
    """Takes models apart, once each; their files stay until `close`."""

    def __init__(self) -> None:
        self._folder: ProcessFolder | None = None
        self._done: dict[tuple[Path, int, int], TakenApart | None] = {}

    def look(self, path: Path) -> TakenApart | None:
        """Take a model apart; None when it has no marked layers.

        Raises
        ------
        ModelLoadError
            When it has, and cannot be taken apart.
        """
        try:
            status = path.stat()
            key = (path, status.st_mtime_ns, status.st_size)
            if key not in self._done:
                self._done[key] = self._take_apart(path)
            return self._done[key]
        except FileNotFoundError:
            return None  # whoever registers the model says so
        except (PolymuxError, OSError) as error:
            raise ModelLoadError(f"layers of domain {DOMAIN!r}: {error}") from error

    def runner(
        self, client: Client, model: RegisteredModel, apart: TakenApart, device: str | None
    ) -> HeavyRunner:
        """Register the pieces of a model and make what runs it.

        Raises
        ------
        ModelLoadError
            With the reason.
        """
        stages: list[_Between | SessionNode] = []
        try:
            with ExitStack() as made:
                session = Session(client)
                made.callback(_close_session, session)
                for number, piece in enumerate(apart.pieces, 1):
                    if isinstance(piece, HeavyNode):
                        stages.append(SessionNode(session, piece))
                        continue
                    path, reads, writes = piece
                    name = f"{model.spec.name}/piece-{number}"
                    spec = register_versions(client, name, OnnxModel(str(path)), path)
                    between = KernelRunner(client, spec, device)
                    made.callback(between.close)
                    stages.append(_Between(between, reads, writes))
                runner = HeavyRunner(client, model, session, stages, device)
                made.pop_all()  # they are the runner's
        except PolymuxError as error:
            raise ModelLoadError(str(error)) from error
        heavy = [stage.node.name for stage in stages if isinstance(stage, SessionNode)]
        _log.info("model %s: all devices compute %s", model.spec.name, ", ".join(heavy))
        return runner

    def close(self) -> None:
        """Remove the files; calling it again is fine."""
        if self._folder is not None:
            self._folder.close()
            self._folder = None
        self._done.clear()

    def _take_apart(self, path: Path) -> TakenApart | None:
        if DOMAIN.encode() not in path.read_bytes():
            return None
        model = load_model(path)
        if not has_heavy_nodes(model):
            return None
        self._folder = self._folder or ProcessFolder()
        folder = self._folder.new()
        whole = folder / "whole.onnx"
        save_model(plain(model), whole)
        pieces: list[HeavyNode | tuple[Path, tuple[str, ...], tuple[str, ...]]] = []
        for number, piece in enumerate(take_apart(model), 1):
            if isinstance(piece, HeavyNode):
                pieces.append(piece)
            else:
                file = folder / f"piece-{number}.onnx"
                save_model(piece.model, file)
                pieces.append((file, piece.reads, piece.writes))
        return TakenApart(whole, tuple(pieces))


@dataclass(frozen=True, slots=True)
class _Between:
    """What runs what lies between marked layers, and the tensors that it takes and gives."""

    runner: KernelRunner
    reads: tuple[str, ...]
    writes: tuple[str, ...]


class HeavyRunner:
    """Runs a model whose marked layers all devices compute together; see `polymux.serving.runner.ModelRunner`.

    Parameters
    ----------
    client : Client
    model : RegisteredModel
    session : Session
        Is the runner's from now on.
    stages : sequence
        Marked layers, and what lies between.
    device : str or None
        Where the rest runs; None: the server's choice.

    Notes
    -----
    A request runs stage by stage. Marked layers wait in a thread; several requests have layers under way together. What
    lies between stays until the last stage that reads it. A request that is cancelled ends with the layer under way,
    which reads its buffers.
    """

    def __init__(
        self,
        client: Client,
        model: RegisteredModel,
        session: Session,
        stages: Sequence[_Between | SessionNode],
        device: str | None,
    ) -> None:
        self._whole = KernelRunner(client, model.spec, device)
        self._session = session
        self._stages = stages
        self._inputs = [param.name for param in model.spec.inputs]
        self._results = [param.name for param in model.spec.outputs]
        self._last_use = {name: at for at, stage in enumerate(stages) for name in stage.reads}
        self._under_way = 0
        self._closed = False
        self._changed = Condition()

    def check_room(self) -> None:
        """Let every request come."""
        self._whole.check_room()

    def allocate(self, shape: tuple[int, ...], dtype: DType) -> Buffer:
        """Return memory for an input."""
        return self._whole.allocate(shape, dtype)

    async def run(
        self,
        inputs: Sequence[TensorBuffer],
        *,
        priority: int = 0,
        arrival_ns: int = 0,
        deadline_ns: int | None = None,
    ) -> Sequence[Buffer]:
        """Run the stages one after the other; see `ModelRunner.run`.

        Raises
        ------
        TaskFailed
            When a stage failed.
        Closed
            When the runner is closed.
        InvalidRequest
            When a marked layer gets shapes that do not fit.
        QueueFull, SegmentFull
            When there is no room for the tasks or their outputs.
        """
        buffers = cast("Sequence[Buffer]", inputs)  # they come from `allocate`
        values = dict(zip(self._inputs, buffers, strict=True))
        made: dict[str, Buffer] = {}
        try:
            for at, stage in enumerate(self._stages):
                if isinstance(stage, SessionNode):
                    made[stage.node.writes] = await self._in_a_thread(stage, dict(values))
                else:
                    outputs = await stage.runner.run(
                        [values[name] for name in stage.reads],
                        priority=priority,
                        arrival_ns=arrival_ns,
                        deadline_ns=deadline_ns,
                    )
                    made.update(zip(stage.writes, outputs, strict=True))
                values.update(made)
                self._drop_used(made, values, at)
            return [made.pop(name) for name in self._results]
        finally:
            for buffer in made.values():
                buffer.close()

    def close(self) -> None:
        """Close the queues; running tasks and layers end first."""
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: not self._under_way)
        self._whole.close()
        for stage in self._stages:
            if isinstance(stage, _Between):
                stage.runner.close()
        _close_session(self._session)

    def _drop_used(self, made: dict[str, Buffer], values: dict[str, Buffer], at: int) -> None:
        """Give back what no stage behind this one needs."""
        for name in [name for name in made if self._last_use.get(name, -1) <= at]:
            if name not in self._results:
                del values[name]
                made.pop(name).close()

    async def _in_a_thread(self, stage: SessionNode, values: Mapping[str, Buffer]) -> Buffer:
        work = asyncio.ensure_future(asyncio.to_thread(self._compute, stage, values))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            work.add_done_callback(_close_result)
            await asyncio.wait([work])  # it reads what the request's end gives back
            raise

    def _compute(self, stage: SessionNode, values: Mapping[str, Buffer]) -> Buffer:
        with self._changed:
            if self._closed:
                raise Closed("the model is unloaded")
            self._under_way += 1
        try:
            arrays: dict[str, Any] = {name: placed(values[name]) for name in stage.reads}
            buffer = stage.run(arrays).buffer
        finally:
            with self._changed:
                self._under_way -= 1
                self._changed.notify_all()
        assert buffer is not None, "results lie in buffers"
        return buffer


def _close_result(work: asyncio.Future[Buffer]) -> None:
    """Give back the result of a layer that nobody waits for any more."""
    if not work.cancelled() and work.exception() is None:
        work.result().close()


def _close_session(session: Session) -> None:
    """Close a session, or keep what it learned where the rest has gone with the connection."""
    if session.client.closed or session.client.server_gone:
        session.save()
    else:
        session.close()
