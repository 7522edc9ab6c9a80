"""How a version of a model gets ready: directly on a queue of its own, or by way of a scheduler."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Protocol

from polymux.client import Client
from polymux.serving.cutting import Cutter
from polymux.serving.heavy_layers import HeavyLayers
from polymux.serving.kernel_runner import KernelRunner
from polymux.serving.model_config_pb2 import ModelConfig
from polymux.serving.models import LoadedModel
from polymux.serving.registered_model import register_model

__all__ = ["DirectLoader", "Loader"]


class Loader(Protocol):
    """Loads models on the core."""

    scheduled: bool
    """Whether requests wait for batches: then some settings of ``config.pbtxt`` have an effect."""

    async def load(
        self, client: Client, name: str, version: int, path: Path, config: ModelConfig
    ) -> LoadedModel:
        """Load one version of a model.

        Parameters
        ----------
        client : Client
            Connection to the core; stays the caller's.
        name, version : str, int
            The model and its version; the kernel is called ``NAME/VERSION``.
        path : pathlib.Path
            The ONNX file.
        config : ModelConfig
            As the operator wrote it.

        Raises
        ------
        ModelLoadError
            With the reason.
        """

    def let_go(self) -> None:
        """Forget everything that was loaded: the connection is gone, or is about to be closed."""


class DirectLoader:
    """Gives each model a queue; the server decides where it runs, and tasks run in the order of their arrival.

    Parameters
    ----------
    device : str or None
        Device for all models; None: the server's choice.
    cutter : Cutter, optional
        Cuts models into parts; None: none is cut.
    """

    scheduled = False

    def __init__(self, device: str | None = None, cutter: Cutter | None = None) -> None:
        self._device = device
        self._cutter = cutter or Cutter()
        self._heavy = HeavyLayers()

    async def load(
        self, client: Client, name: str, version: int, path: Path, config: ModelConfig
    ) -> LoadedModel:
        """Load one version of a model; see `Loader.load`."""

        def load() -> LoadedModel:
            apart = self._heavy.look(path)
            if apart is not None:
                self._cutter.decline(name, config, "all devices compute its marked layers")
                model = register_model(client, name, version, apart.path, config)
                return model.loaded(self._heavy.runner(client, model, apart, self._device))
            model = register_model(client, name, version, path, config)
            model = self._cutter.cut(client, name, model, path)
            return model.loaded(KernelRunner(client, model.spec, self._device, parts=model.parts))

        return await asyncio.to_thread(load)

    def let_go(self) -> None:
        """Remove the files of models that were taken apart."""
        self._heavy.close()
