"""Keeping the models loaded: at the start, and again whenever the server has been away."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from polymux.client import Client
from polymux.core.errors import InvalidRequest, PolymuxError
from polymux.serving.config_check import unused_settings
from polymux.serving.errors import ModelLoadError
from polymux.serving.loader import Loader
from polymux.serving.models import LoadedModel, Models, ModelState, ModelVersion
from polymux.serving.repository import ModelFiles, scan

__all__ = ["Lifecycle"]

_log = logging.getLogger(__name__)

_LOOK_S = 0.5
_LONGEST_PAUSE_S = 5.0


class Lifecycle:
    """Loads the models of a repository into `models`.

    Parameters
    ----------
    repository : pathlib.Path
        The model repository.
    models : Models
        Where the models appear.
    client : Client
        Connection to the core; becomes this object's, to be closed in the end.
    reconnect : callable
        Connects again to the server that went away; raises `PolymuxError` while it is not back.
    loader : Loader
        Gets the models ready.

    Raises
    ------
    NotADirectoryError
        When the repository is no directory.
    """

    def __init__(
        self,
        repository: Path,
        models: Models,
        client: Client,
        reconnect: Callable[[], Client],
        loader: Loader,
    ) -> None:
        self._models = models
        self._client = client
        self._reconnect = reconnect
        self._loader = loader
        self._files = scan(repository)
        self._set_all(ModelState.LOADING, "")

    async def run(self) -> None:
        """Load the models, and load them again each time the server has been away; returns only when cancelled."""
        try:
            await self._run()
        finally:
            self._loader.let_go()

    async def _run(self) -> None:
        while True:
            await self._load_all(self._client)
            while not self._client.server_gone:
                await asyncio.sleep(_LOOK_S)
            _log.error("the Polymux server is gone; waiting for it to come back")
            loaded = [version.loaded for version in self._models.all_versions() if version.loaded is not None]
            self._set_all(ModelState.UNAVAILABLE, "the Polymux server is gone; this front end waits for it")
            self._loader.let_go()
            for model in loaded:
                try:
                    await asyncio.to_thread(model.runner.close)
                except PolymuxError as error:
                    _log.warning("a model was not unloaded in order: %s", error)
            self._client.close()
            self._client = await self._connect_again()
            _log.info("the Polymux server is back; loading the models again")
            self._set_all(ModelState.LOADING, "")

    def names(self) -> list[str]:
        """Return the names of all models of the repository."""
        return [files.name for files in self._files]

    def status(self) -> dict[str, Any]:
        """Ask the server for its status; from any thread.

        Raises
        ------
        PolymuxError
            When it is gone.
        """
        return self._client.status()

    def close(self) -> None:
        """Unload all models and close the connection."""
        for version in self._models.all_versions():
            if version.loaded is not None:
                version.loaded.runner.close()
        self._client.close()

    def _set_all(self, state: ModelState, reason: str) -> None:
        for files in self._files:
            if files.error is not None:
                self._models.put(ModelVersion(files.name, None, ModelState.UNAVAILABLE, files.error))
            for version in files.versions:
                self._models.put(ModelVersion(files.name, version, state, reason))

    async def _load_all(self, client: Client) -> None:
        for files in self._files:
            if files.error is not None:
                _log.error("model %s is not served: %s", files.name, files.error)
            if unused := unused_settings(files.config, self._loader.scheduled):
                _log.warning("model %s: no effect in this version: %s", files.name, ", ".join(unused))
            for version in files.versions:
                self._models.put(await self._load(client, files, version))
        ready = [version for version in self._models.all_versions() if version.loaded is not None]
        total = len(self._models.all_versions())
        _log.log(
            logging.INFO if len(ready) == total else logging.WARNING,
            "%d of %d models ready",
            len(ready),
            total,
        )

    async def _load(self, client: Client, files: ModelFiles, version: int) -> ModelVersion:
        started = time.monotonic()
        path = files.versions[version]
        try:
            loaded = await self._loader.load(client, files.name, version, path, files.config)
        except ModelLoadError as error:
            _log.error("model %s version %d is not served: %s", files.name, version, error)
            return ModelVersion(files.name, version, ModelState.UNAVAILABLE, str(error))
        elapsed = time.monotonic() - started
        _log.info("model %s version %d loaded in %.1f s: %s", files.name, version, elapsed, _tensors(loaded))
        return ModelVersion(files.name, version, ModelState.READY, "", loaded)

    async def _connect_again(self) -> Client:
        pause = _LOOK_S
        told = ""
        while True:
            await asyncio.sleep(pause)
            try:
                return await asyncio.to_thread(self._reconnect)
            except (PolymuxError, OSError) as error:
                refused = isinstance(error, InvalidRequest) and str(error) != told
                _log.log(logging.WARNING if refused else logging.DEBUG, "not connected again: %s", error)
                told = str(error)
                pause = min(2 * pause, _LONGEST_PAUSE_S)


def _tensors(loaded: LoadedModel) -> str:
    """Return a model's tensors for the log: ``x FP32[-1,3] -> y FP32[-1,10]``."""

    def side(tensors: Sequence[dict[str, object]]) -> str:
        return ", ".join(f"{t['name']} {t['datatype']}{t['shape']}".replace(", ", ",") for t in tensors)

    signature = loaded.signature
    return " -> ".join(
        side([tensor.metadata() for tensor in tensors.values()])
        for tensors in (signature.inputs, signature.outputs)
    )
