"""ONNX models of a single node, written without the package ``onnx``, which a server need not have.

References
----------
``onnx.proto`` of ONNX 1.14 (field numbers), Protocol Buffers encoding (varints, length-delimited fields).
"""

from __future__ import annotations

from dataclasses import dataclass

_IR_VERSION, _OPSET = 8, 17
_INT, _INTS = 2, 7  # AttributeProto.AttributeType


@dataclass(frozen=True, slots=True)
class NodeModel:
    """A model with inputs ``a`` and ``b`` and output ``c`` of free shapes.

    Parameters
    ----------
    op : str
        Operator of the default domain.
    element : int
        ``TensorProto.DataType`` of all three.
    ranks : tuple of int
        Dimensions of a, b and c.
    attributes : tuple of (str, int or tuple of int)
    """

    op: str
    element: int
    ranks: tuple[int, int, int]
    attributes: tuple[tuple[str, int | tuple[int, ...]], ...] = ()


def one_node_model(model: NodeModel) -> bytes:
    """Serialize a ``ModelProto``."""
    node = _text(1, "a") + _text(1, "b") + _text(2, "c") + _text(4, model.op)
    for name, value in model.attributes:
        node += _block(5, _attribute(name, value))
    graph = _block(1, node) + _text(2, "chunk")
    for name, field, rank in zip("abc", (11, 11, 12), model.ranks, strict=True):
        graph += _block(field, _value(name, model.element, rank))
    opset = _text(1, "") + _number(2, _OPSET)
    return _number(1, _IR_VERSION) + _block(7, graph) + _block(8, opset)


def _attribute(name: str, value: int | tuple[int, ...]) -> bytes:
    if isinstance(value, int):
        return _text(1, name) + _number(3, value) + _number(20, _INT)
    return _text(1, name) + b"".join(_number(8, item) for item in value) + _number(20, _INTS)


def _value(name: str, element: int, rank: int) -> bytes:
    shape = b"".join(_block(1, _text(2, f"{name}{axis}")) for axis in range(rank))
    tensor = _number(1, element) + _block(2, shape)
    return _text(1, name) + _block(2, _block(1, tensor))


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _text(field: int, value: str) -> bytes:
    return _block(field, value.encode())


def _block(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    """Encode a number that is not negative, seven bits a byte."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
