"""The models behind ``polymux serve``, through the client library that Triton's users have."""

from __future__ import annotations

import time

import numpy as np
from tritonclient.http import InferenceServerClient, InferInput
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from polymux.demo.inference import Reference, Tensors, difference
from polymux.demo.message import Answer, Teller

__all__ = ["CheckedModels", "HttpModels", "LostAnswer"]

_TIMEOUT_S = 60.0


class LostAnswer(Exception):
    """A request ended with an error instead of an answer."""


class HttpModels:
    """One client; used by one thread.

    Parameters
    ----------
    address : str
        ``HOST:PORT``.
    """

    def __init__(self, address: str) -> None:
        self._client = InferenceServerClient(
            address, connection_timeout=_TIMEOUT_S, network_timeout=_TIMEOUT_S
        )

    def __call__(self, model: str, inputs: Tensors) -> Tensors:
        """Run a model; `Infer`.

        Raises
        ------
        LostAnswer
            When the server answers with an error, or not at all.
        """
        tensors = []
        for name, value in inputs.items():
            tensor = InferInput(name, list(value.shape), np_to_triton_dtype(value.dtype))
            tensor.set_data_from_numpy(np.ascontiguousarray(value) if value.ndim else value)
            tensors.append(tensor)
        try:
            result = self._client.infer(model, tensors)
            names = [output["name"] for output in result.get_response()["outputs"]]
        except (InferenceServerException, OSError) as error:
            raise LostAnswer(f"{model}: {error}") from error
        return {name: result.as_numpy(name) for name in names}

    def is_ready(self) -> bool:
        """Whether the server answers and has loaded every model."""
        try:
            return bool(self._client.is_server_ready())
        except (InferenceServerException, OSError):
            return False

    def close(self) -> None:
        """Close its connections."""
        self._client.close()


class CheckedModels:
    """Holds every answer against the reference and reports both; otherwise like `HttpModels`."""

    def __init__(self, models: HttpModels, reference: Reference, teller: Teller) -> None:
        self._models = models
        self._reference = reference
        self._teller = teller

    def __call__(self, model: str, inputs: Tensors) -> Tensors:
        """Run a model; `Infer`."""
        self._teller.sent(model)
        start_ns = time.monotonic_ns()
        try:
            answer = self._models(model, inputs)
        except LostAnswer as error:
            self._teller.answered(Answer(model, start_ns, time.monotonic_ns(), str(error), failed=True))
            raise
        end_ns = time.monotonic_ns()
        problem = difference(answer, self._reference(model, inputs))
        self._teller.answered(Answer(model, start_ns, end_ns, f"{model}: {problem}" if problem else ""))
        return answer
