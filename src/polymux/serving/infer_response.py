"""The answer to an inference request: JSON, and after it the tensors that were asked for in binary form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from polymux.serving.json_text import dump, dump_array
from polymux.serving.request_tensors import RequestedOutput

__all__ = ["encode_response"]


def encode_response(
    model: str,
    version: int,
    identifier: str | None,
    outputs: Sequence[tuple[RequestedOutput, np.ndarray[Any, Any]]],
) -> tuple[int | None, list[bytes]]:
    """Encode the answer.

    Parameters
    ----------
    model, version, identifier
        Name and version of the model that ran, and the request's id.
    outputs : sequence of (RequestedOutput, numpy.ndarray)
        Each output with its value, in the shape that the model gave it.

    Returns
    -------
    int or None
        Length of the JSON in bytes when binary tensors follow it.
    list of bytes
        The body in pieces: copies, so that the buffers can be given back.
    """
    tensors: list[dict[str, Any]] = []
    binary: list[bytes] = []
    for output, array in outputs:
        tensor = output.signature.metadata()
        tensor["shape"] = output.signature.from_model(array.shape)
        if output.is_binary:
            binary.append(array.tobytes())
            tensor["parameters"] = {"binary_data_size": len(binary[-1])}
        else:
            tensor["data"] = dump_array(array)
        tensors.append(tensor)
    document: dict[str, Any] = {"model_name": model, "model_version": str(version), "outputs": tensors}
    if identifier is not None:
        document["id"] = identifier
    text = dump(document)
    return (len(text) if any(output.is_binary for output, _ in outputs) else None), [text, *binary]
