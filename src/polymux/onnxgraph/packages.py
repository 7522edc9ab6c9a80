"""The packages that graphs need, imported when they are needed."""

from __future__ import annotations

import importlib
from typing import Any

from polymux.core.errors import DeviceUnavailable


def import_onnx() -> Any:
    """Import the package onnx.

    Raises
    ------
    DeviceUnavailable
        If it is not installed, with the remedy.
    """
    return _imported("onnx", "reading the graphs of models")


def import_onnxruntime() -> Any:
    """Import onnxruntime.

    Raises
    ------
    DeviceUnavailable
        If it is not installed, with the remedy.
    """
    return _imported("onnxruntime", "running a model")


def _imported(package: str, what: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise DeviceUnavailable(
            f"{what} needs the package {package} ({error}); install it with pip install 'polymux[profile]'"
        ) from error
