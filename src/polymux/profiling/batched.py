"""Keeps a model whose batch was made free, as a file to serve, with the profile that belongs to it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from polymux.core.errors import ConfigError
from polymux.profiles import ProfileStore, model_key
from polymux.profiling.model import PreparedModel
from polymux.profiling.target import Target


def save_batched(model: PreparedModel, target: Target, store: ProfileStore, folder: Path) -> Path:
    """Write a rewritten model to ``NAME/1/model.onnx`` and give that file the profile of the original.

    It is the rewritten file that was measured, so the profile is its own.

    Parameters
    ----------
    model : PreparedModel
        Whose record says "rewritten"; profiled on the target.
    target : Target
    store : ProfileStore
        Open for writing.
    folder : pathlib.Path
        A model repository.

    Returns
    -------
    pathlib.Path
        The file.

    Raises
    ------
    ConfigError
        If another file is in its place, or it cannot be written.
    """
    key, device = model_key(model.path), target.identity.key
    path = folder / model.record.name / "1" / "model.onnx"
    if path.exists() and model_key(path) != key:
        raise ConfigError(str(path), "model", "is there already", "remove it, or name another folder")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(model.path, path)
    except OSError as error:
        raise ConfigError(str(path), "model", error.strerror or str(error), "name another folder") from error
    name = f"{model.record.name}-batched"
    store.put_model(replace(model.record, key=key, name=name, path=str(path.resolve()), batching="dynamic"))
    store.put_costs(key, model.costs)
    grid = store.grid(model.record.key, device)
    if grid is not None:
        store.put_grid(key, device, grid)
    for point in store.points(model.record.key, device):
        store.put_point(key, device, point)
    return path
