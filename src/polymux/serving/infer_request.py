"""The JSON part of an inference request, checked against the model's signature, as plain values.

Everything that can be refused is refused here, before a byte is allocated for the request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from polymux.core.dtype import DType
from polymux.core.errors import InvalidRequest
from polymux.core.task_view import shape_nbytes
from polymux.serving.datatype import PROTOCOL_NAMES
from polymux.serving.errors import RequestError
from polymux.serving.parameters import boolean, parameters_of, unsigned
from polymux.serving.signature import ModelSignature, TensorSignature

__all__ = ["InferRequest", "RequestedInput", "RequestedOutput", "parse_request", "raw_request"]

_SHARED_MEMORY = ("shared_memory_region", "shared_memory_offset", "shared_memory_byte_size")


@dataclass(frozen=True, slots=True)
class RequestedInput:
    """One input tensor of a request.

    Attributes
    ----------
    signature : TensorSignature
        The model's input that it is for.
    shape : tuple of int
        As sent.
    nbytes : int
        Size of the whole tensor, in bytes.
    data : object
        The parsed ``data``; None for a binary tensor, whose bytes follow the JSON.
    """

    signature: TensorSignature
    shape: tuple[int, ...]
    nbytes: int
    data: Any

    @property
    def is_binary(self) -> bool:
        """Whether the tensor's bytes follow the JSON."""
        return self.data is None


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    """One output tensor that the answer shall hold, and whether in binary form."""

    signature: TensorSignature
    is_binary: bool


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
    inputs = _inputs(document.get("inputs"), signature, has_binary, max_nbytes)
    binary_by_default = boolean(parameters, "binary_data_output", False)
    return InferRequest(
        id=identifier,
        inputs=inputs,
        outputs=_outputs(document.get("outputs"), signature, binary_by_default),
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


def _inputs(
    items: Any, signature: ModelSignature, has_binary: bool, max_nbytes: int
) -> tuple[RequestedInput, ...]:
    found: dict[str, RequestedInput] = {}
    for name, item in _named(items, "inputs"):
        tensor = signature.inputs.get(name)
        if tensor is None:
            raise RequestError(400, f"unknown input '{name:.100}'; the model has {list(signature.inputs)}")
        if name in found:
            raise RequestError(400, f"input '{name}' is given twice")
        found[name] = _input(item, tensor, has_binary, max_nbytes)
    if missing := [name for name in signature.inputs if name not in found]:
        raise RequestError(400, f"the inputs {missing} are missing")
    signature.check_batch({name: tensor.shape for name, tensor in found.items()})
    return tuple(found.values())


def _input(
    item: dict[str, Any], tensor: TensorSignature, has_binary: bool, max_nbytes: int
) -> RequestedInput:
    where = f"input '{tensor.name}'"
    expected = PROTOCOL_NAMES[tensor.dtype]
    if item.get("datatype") != expected:
        raise RequestError(
            400, f"{where}: datatype {item.get('datatype')!r:.40} given, the model needs '{expected}'"
        )
    shape = _shape(item.get("shape"), where)
    tensor.check_shape(shape)
    try:
        nbytes = shape_nbytes(shape, tensor.dtype)
    except InvalidRequest as error:
        raise RequestError(400, f"{where}: {error}") from None
    parameters = parameters_of(item, where)
    if any(key in parameters for key in _SHARED_MEMORY):
        raise RequestError(
            400, f"{where}: shared memory regions are not supported; send the data in the request"
        )
    data = item.get("data")
    if "binary_data_size" not in parameters:
        if data is None:
            raise RequestError(400, f"{where}: has neither 'data' nor the parameter 'binary_data_size'")
        return RequestedInput(tensor, shape, nbytes, data)
    if data is not None:
        raise RequestError(400, f"{where}: has both 'data' and 'binary_data_size'; give one")
    if not has_binary:
        raise RequestError(
            400, f"{where}: has 'binary_data_size' but the header Inference-Header-Content-Length is missing"
        )
    size = unsigned(parameters, "binary_data_size")
    if size != nbytes:
        raise RequestError(
            400, f"{where}: binary_data_size is {size}, its shape {list(shape)} needs {nbytes} bytes"
        )
    if nbytes > max_nbytes:
        raise RequestError(
            413, f"{where}: {nbytes} bytes are more than the {max_nbytes} that a request may have"
        )
    return RequestedInput(tensor, shape, nbytes, None)


def _shape(value: Any, where: str) -> tuple[int, ...]:
    if not isinstance(value, list) or any(type(extent) is not int or extent < 0 for extent in value):
        raise RequestError(
            400, f"{where}: 'shape' must be a list of integers of 0 or more, got {value!r:.60}"
        )
    return tuple(value)


def _outputs(items: Any, signature: ModelSignature, binary_by_default: bool) -> tuple[RequestedOutput, ...]:
    if items is None or items == []:
        return tuple(_output(tensor, binary_by_default) for tensor in signature.outputs.values())
    found: dict[str, RequestedOutput] = {}
    for name, item in _named(items, "outputs"):
        tensor = signature.outputs.get(name)
        if tensor is None:
            raise RequestError(400, f"unknown output '{name:.100}'; the model has {list(signature.outputs)}")
        if name in found:
            raise RequestError(400, f"output '{name}' is asked for twice")
        parameters = parameters_of(item, f"output '{name}'")
        for key in ("classification", *_SHARED_MEMORY):
            if parameters.get(key):
                raise RequestError(
                    400, f"output '{name}': the parameter '{key}' is not supported; leave it out"
                )
        found[name] = _output(tensor, boolean(parameters, "binary_data", binary_by_default))
    return tuple(found.values())


def _output(tensor: TensorSignature, is_binary: bool) -> RequestedOutput:
    if tensor.dtype is DType.BF16 and not is_binary:
        raise RequestError(
            400, f"output '{tensor.name}': BF16 has no form in JSON; ask for it with 'binary_data': true"
        )
    return RequestedOutput(tensor, is_binary)


def _named(items: Any, field: str) -> list[tuple[str, dict[str, Any]]]:
    if not isinstance(items, list) or not items:
        raise RequestError(400, f"'{field}' must be a list with at least one tensor")
    pairs: list[tuple[str, dict[str, Any]]] = []
    for item in items:
        if not isinstance(item, dict) or not isinstance(item.get("name"), str):
            raise RequestError(400, f"each of '{field}' must be an object with a 'name' string")
        pairs.append((item["name"], item))
    return pairs
