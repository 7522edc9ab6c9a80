"""Loads and saves ONNX files."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from polymux.core.errors import ConfigError
from polymux.onnxgraph.packages import import_onnx

MOST_NBYTES = 2**31 - 1
"""Largest file that the format can hold with its weights inside."""


def load_model(path: str | Path) -> Any:
    """Load a model with its weights.

    Returns
    -------
    onnx.ModelProto

    Raises
    ------
    ConfigError
        If the file cannot be read or is no ONNX model.
    """
    onnx = import_onnx()
    try:
        model = onnx.load(os.fspath(path))
    except OSError as error:
        raise ConfigError(str(path), "model", error.strerror or str(error), "give an ONNX file") from error
    except Exception as error:  # protobuf's, of several classes
        raise ConfigError(
            str(path), "model", "is no ONNX model", f"give the file of an ONNX model ({error})"
        ) from error
    if not model.graph.node:
        raise ConfigError(str(path), "model", "has no nodes", "give the file of an ONNX model")
    return model


def save_model(model: Any, path: Path) -> None:
    """Save a model with its weights in one file, which is whole or not there.

    Raises
    ------
    ConfigError
        If it is too large or cannot be written.
    """
    if model.ByteSize() > MOST_NBYTES:
        remedy = "models of more than 2 GiB cannot be rewritten into one file"
        raise ConfigError(str(path), "model", f"{model.ByteSize()} bytes", remedy)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
            part = Path(file.name)
            try:
                file.write(model.SerializeToString(deterministic=True))
            except BaseException:
                part.unlink()
                raise
        part.chmod(0o644)
        part.replace(path)
    except OSError as error:
        raise ConfigError(
            str(path), "model", error.strerror or str(error), "name a folder that can be written"
        ) from error
