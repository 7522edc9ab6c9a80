"""The JSON part of an inference request, checked against the model's signature, as plain values.

Everything that can be refused is refused here, before a byte is allocated for the request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from polymux.core.task_view import shape_nbytes
from polymux.serving.errors import RequestError
from polymux.serving.parameters import boolean, parameters_of, unsigned
from polymux.serving.request_tensors import RequestedInput, RequestedOutput, parse_inputs, parse_outputs
from polymux.serving.signature import ModelSignature

__all__ = ["InferRequest", "parse_request", "raw_request"]


@dataclass(frozen=True, slots=True)
class InferRequest:
    """A checked inference request.

    Attributes
    ----------
    id : str or None
        To be repeated in the answer.
    inputs : tuple of RequestedInput
        In the request's order, which is the order of the binary tensors.
    outputs : tuple of RequestedOutput
        In the answer's order.
    priority : int
        0: the model's default; 1 is the highest level, greater numbers are lower levels.
    timeout_us : int
        Time after which the client has no use for the answer, in microseconds from the request's arrival; 0: none.
    """

    id: str | None
    inputs: tuple[RequestedInput, ...]
    outputs: tuple[RequestedOutput, ...]
    priority: int
    timeout_us: int


def parse_request(
    document: Any, signature: ModelSignature, has_binary: bool, max_nbytes: int
) -> InferRequest:
    """Check the JSON of an inference request.

    Parameters
    ----------
    document : object
        The parsed JSON.
    signature : ModelSignature
        The model's tensors.
    has_binary : bool
        Whether binary tensors may follow the JSON.
    max_nbytes : int
        Greatest tensor.

    Raises
    ------
    RequestError
        400 with the field, the value and the remedy.
    """
    if not isinstance(document, dict):
        raise RequestError(400, "the request must be a JSON object with 'inputs'")
    identifier = document.get("id")
    if identifier is not None and not isinstance(identifier, str):
        raise RequestError(400, f"'id' must be a string, got {identifier!r:.40}")
    parameters = parameters_of(document, "the request")
    if parameters.get("sequence_id") not in (None, 0, ""):
        raise RequestError(
            400, "'sequence_id': the model keeps no state between requests; send its state as inputs"
        )
    inputs = parse_inputs(document.get("inputs"), signature, has_binary, max_nbytes)
    binary_by_default = boolean(parameters, "binary_data_output", False)
    return InferRequest(
        id=identifier,
        inputs=inputs,
        outputs=parse_outputs(document.get("outputs"), signature, binary_by_default),
        priority=unsigned(parameters, "priority"),
        timeout_us=unsigned(parameters, "timeout"),
    )


def raw_request(signature: ModelSignature, content_nbytes: int) -> InferRequest:
    """Describe a raw binary request: the whole body is the one input, all outputs come back in binary form.

    Raises
    ------
    RequestError
        400 when the model's inputs do not allow this, or the body's size does not fit the input's shape.

    References
    ----------
    Open Inference Protocol, binary tensor data extension, "Raw Binary Request".
    """
    if len(signature.inputs) != 1:
        raise RequestError(
            400, f"a raw binary request needs a model with one input; this one has {len(signature.inputs)}"
        )
    tensor = next(iter(signature.inputs.values()))
    extents = tensor.shape
    if extents is not None and signature.max_batch_size > 0:
        extents = (1, *extents[1:])
    if extents is None or extents.count(None) > 1:
        raise RequestError(
            400,
            f"a raw binary request needs an input with at most one dynamic extent; '{tensor.name}' has more",
        )
    fixed = shape_nbytes([extent for extent in extents if extent is not None], tensor.dtype)
    free = content_nbytes // fixed if fixed else 0
    shape = tuple(free if extent is None else extent for extent in extents)
    if shape_nbytes(shape, tensor.dtype) != content_nbytes:
        raise RequestError(
            400,
            f"{content_nbytes} bytes do not fill input '{tensor.name}' of shape {tensor.metadata()['shape']}",
        )
    inputs = (RequestedInput(tensor, shape, content_nbytes, None),)
    outputs = tuple(RequestedOutput(output, True) for output in signature.outputs.values())
    return InferRequest(None, inputs, outputs, 0, 0)
