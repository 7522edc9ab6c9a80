"""A model that computes in this process, in place of one on the core."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from polymux.core.dtype import DType
from polymux.serving.model_config_pb2 import ModelConfig
from polymux.serving.models import LoadedModel
from polymux.serving.signature import Extents, ModelSignature, TensorSignature


class FakeBuffer:
    def __init__(self, array: np.ndarray[Any, Any], live: set[FakeBuffer]) -> None:
        self._array = array
        self._live = live
        live.add(self)

    @property
    def shape(self) -> tuple[int, ...]:
        return self._array.shape

    def numpy(self) -> np.ndarray[Any, Any]:
        return self._array

    def close(self) -> None:
        self._live.discard(self)


class FakeRunner:
    """Calls a function; `live` holds the buffers that nobody has closed."""

    def __init__(self, function: Callable[..., Sequence[np.ndarray[Any, Any]]]) -> None:
        self._function = function
        self.live: set[FakeBuffer] = set()
        self.allocated_nbytes = 0
        self.hints: list[tuple[int, int | None]] = []
        self.gate: asyncio.Event | None = None

    def allocate(self, shape: tuple[int, ...], dtype: DType) -> FakeBuffer:
        array = np.empty(shape, dtype.to_numpy())
        self.allocated_nbytes += array.nbytes
        return FakeBuffer(array, self.live)

    def check_room(self) -> None:
        pass

    async def run(
        self, inputs: Sequence[FakeBuffer], *, priority: int, arrival_ns: int, deadline_ns: int | None
    ) -> Sequence[FakeBuffer]:
        self.hints.append((priority, deadline_ns))
        if self.gate is not None:
            await self.gate.wait()
        results = self._function(*(buffer.numpy() for buffer in inputs))
        return [FakeBuffer(np.asarray(result), self.live) for result in results]

    def close(self) -> None:
        pass


def tensor(name: str, dtype: DType, shape: Extents) -> TensorSignature:
    return TensorSignature(name, dtype, shape, shape)


def signature(
    inputs: Sequence[TensorSignature], outputs: Sequence[TensorSignature], max_batch_size: int = 0
) -> ModelSignature:
    return ModelSignature({t.name: t for t in inputs}, {t.name: t for t in outputs}, max_batch_size)


def loaded(runner: FakeRunner, model: ModelSignature) -> LoadedModel:
    config = ModelConfig(platform="onnxruntime_onnx", max_batch_size=model.max_batch_size)
    return LoadedModel(config, model, runner, tuple(model.outputs))
