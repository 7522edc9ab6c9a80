"""Puts input stages before models."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from polymux.client import Client
from polymux.core.errors import PolymuxError
from polymux.core.kernel_spec import BufferParam
from polymux.inputs import InputStage, StagePool, make_stage
from polymux.serving.errors import ModelLoadError
from polymux.serving.loader import Loader
from polymux.serving.model_config_pb2 import ModelConfig
from polymux.serving.models import LoadedModel
from polymux.serving.scheduling.settings import SchedulingOptions, settings_of
from polymux.serving.signature import ModelSignature, TensorSignature
from polymux.serving.stages.runner import StagedRunner, Urgency
from polymux.serving.stages.settings import StageOptions, stage_settings

__all__ = ["StagedLoader", "staged_signature"]


class StagedLoader:
    """A `Loader` whose models have the input stages that their configurations name.

    Parameters
    ----------
    loader : Loader
        Loads the models themselves.
    pool : StagePool
        Runs the stages; stays the caller's.
    options : StageOptions
    scheduling : SchedulingOptions, optional
        Priorities and deadlines of the models; None: each request has its own.
    """

    def __init__(
        self,
        loader: Loader,
        pool: StagePool,
        options: StageOptions,
        scheduling: SchedulingOptions | None = None,
    ) -> None:
        self._loader = loader
        self._pool = pool
        self._options = options
        self._scheduling = scheduling
        self.scheduled = loader.scheduled

    async def load(
        self, client: Client, name: str, version: int, path: Path, config: ModelConfig
    ) -> LoadedModel:
        """Load one version of a model; see `Loader.load`."""
        settings = stage_settings(config, self._options)
        model = await self._loader.load(client, name, version, path, config)
        if settings is None:
            return model
        try:
            targets = _targets(model.signature)
            stage = await asyncio.to_thread(make_stage, settings.text, targets, path.parent.parent)
            signature = staged_signature(model.signature, stage)
        except PolymuxError as error:
            model.runner.close()
            raise error if isinstance(error, ModelLoadError) else ModelLoadError(str(error)) from error
        urgency = Urgency()
        if self._scheduling is not None:
            own = settings_of(name, config, self._scheduling)
            urgency = Urgency(own.priority, own.slo_ns)
        runner = StagedRunner(
            model.runner, stage, self._pool, signature, tuple(model.signature.inputs), settings.share, urgency
        )
        return replace(model, signature=signature, runner=runner)

    def let_go(self) -> None:
        """Forget the models; the stages have nothing to forget."""
        self._loader.let_go()


def staged_signature(model: ModelSignature, stage: InputStage) -> ModelSignature:
    """Return the signature that clients see: the stage's inputs in place of the tensors that it makes.

    A request is one item: what the model calls its batch is 1.

    Raises
    ------
    ModelLoadError
        When a name would be there twice.
    """
    made = {param.name for param in stage.outputs}
    inputs = {
        param.name: TensorSignature(param.name, param.dtypes[0], param.shape, param.shape)
        for param in stage.inputs
    }
    for name, tensor in model.inputs.items():
        if name in made:
            continue
        if name in inputs:
            raise ModelLoadError(
                f"input stage '{stage.name}': both the stage and the model have an input '{name}'; let the stage make"
                " it (into=NAME), or rename one of them"
            )
        inputs[name] = _one_item(tensor) if model.max_batch_size else tensor
    return ModelSignature(inputs, model.outputs, 0)


def _one_item(tensor: TensorSignature) -> TensorSignature:
    shape, inside = tensor.shape, tensor.model_shape
    return TensorSignature(
        tensor.name,
        tensor.dtype,
        None if shape is None else (1, *shape[1:]),
        None if inside is None else (1, *inside[1:]),
    )


def _targets(model: ModelSignature) -> list[BufferParam]:
    """Say what the model takes for one item."""
    tensors = model.inputs.values()
    items = [_one_item(tensor) if model.max_batch_size else tensor for tensor in tensors]
    return [BufferParam(tensor.name, (tensor.dtype,), tensor.model_shape) for tensor in items]
