"""The tensors that a request sends and asks for, each checked against the model's."""

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

__all__ = ["RequestedInput", "RequestedOutput", "parse_inputs", "parse_outputs"]

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


def parse_inputs(
    items: Any, signature: ModelSignature, has_binary: bool, max_nbytes: int
) -> tuple[RequestedInput, ...]:
    """Check a request's ``inputs``; the parameters are those of `parse_request`.

    Raises
    ------
    RequestError
        400, or 413 for a tensor of more than `max_nbytes`.
    """
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


def parse_outputs(
    items: Any, signature: ModelSignature, binary_by_default: bool
) -> tuple[RequestedOutput, ...]:
    """Check a request's ``outputs``; without any, all outputs of the model are returned.

    Raises
    ------
    RequestError
        400.
    """
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
