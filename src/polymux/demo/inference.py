"""Running a model by name: what a workload needs, and the reference that every answer is held against."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import onnxruntime

from polymux.demo.models import MODELS

__all__ = ["RELATIVE_TOLERANCE", "Infer", "Reference", "Tensors", "difference"]

Tensors = Mapping[str, npt.NDArray[Any]]

RELATIVE_TOLERANCE = 1e-3
"""Largest accepted difference from the reference, as a part of the largest reference value of the tensor.

Sums of a model run in another order with another number of threads, which changes the last bits of float32.
"""


class Infer(Protocol):
    """Runs a model."""

    def __call__(self, model: str, inputs: Tensors) -> Tensors:
        """Return the outputs by name."""


class Reference:
    """The models run directly by onnxruntime in this process, one thread each; answers are kept.

    Notes
    -----
    May be called by several threads. Equal inputs are computed once.
    """

    def __init__(self, models: tuple[str, ...]) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        self._sessions = {
            name: onnxruntime.InferenceSession(
                str(MODELS[name].file), options, providers=["CPUExecutionProvider"]
            )
            for name in models
        }
        self._known: dict[bytes, Tensors] = {}
        self._lock = threading.Lock()

    def __call__(self, model: str, inputs: Tensors) -> Tensors:
        """Run a model; `Infer`."""
        key = _digest(model, inputs)
        with self._lock:
            found = self._known.get(key)
        if found is not None:
            return found
        session = self._sessions[model]
        names = [output.name for output in session.get_outputs()]
        outputs = dict(zip(names, session.run(names, dict(inputs)), strict=True))
        with self._lock:
            self._known[key] = outputs
        return outputs

    def metadata(self, model: str, key: str) -> str:
        """Return an entry of the metadata in a model's file."""
        return str(self._sessions[model].get_modelmeta().custom_metadata_map[key])


def difference(answer: Tensors, reference: Tensors) -> str:
    """Compare an answer with its reference; an empty text when they agree, else what differs."""
    if answer.keys() != reference.keys():
        return f"outputs {sorted(answer)} instead of {sorted(reference)}"
    for name, expected in reference.items():
        found = answer[name]
        if found.shape != expected.shape or found.dtype != expected.dtype:
            return f"{name} is {found.dtype}{list(found.shape)} instead of {expected.dtype}{list(expected.shape)}"
        largest = float(np.abs(expected).max(initial=0.0))
        off = float(np.abs(found - expected).max(initial=0.0))
        if not off <= RELATIVE_TOLERANCE * largest:  # a NaN is never within
            return f"{name} differs by {off:.2g} where values reach {largest:.2g}"
    return ""


def _digest(model: str, inputs: Tensors) -> bytes:
    digest = hashlib.blake2b(model.encode(), digest_size=16)
    for name, value in inputs.items():
        digest.update(f"{name}{value.dtype}{value.shape}".encode())
        digest.update(np.ascontiguousarray(value).data if value.ndim else value.tobytes())
    return digest.digest()
