"""How many arithmetic operations an operator of a graph takes, from the shapes of its inputs and outputs.

The names are ONNX's. A multiply-add counts as two operations, any other arithmetic on an element as one; moving data is
none. What is not known here counts as one operation for each element of its outputs, and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from polymux.core.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Tensor:
    """Shape and element size of an input or output.

    Parameters
    ----------
    shape : tuple of int
        Empty for a scalar; no dimension unknown.
    item_nbytes : float
        Bytes of an element: 4 for single precision, 0.5 for 4-bit integers.
    constant : bool
        Whether it is a weight: part of the model.
    """

    shape: tuple[int, ...]
    item_nbytes: float = 4
    constant: bool = False

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return round(self.size * self.item_nbytes)


@dataclass(frozen=True, slots=True)
class Node:
    """An operator with the shapes of what goes in and comes out.

    Parameters
    ----------
    op : str
        Operator: ``"Conv"``.
    inputs, outputs : tuple of Tensor or None
        In the operator's order; None: an optional one that is left out.
    attributes : mapping of str to value
        Those of the operator; of use here are ``transA``, ``kernel_shape`` and ``equation``.
    name : str

    Raises
    ------
    InvalidRequest
        If a dimension is negative.
    """

    op: str
    inputs: tuple[Tensor | None, ...]
    outputs: tuple[Tensor | None, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""

    def __post_init__(self) -> None:
        for tensor in self.inputs + self.outputs:
            if tensor is not None and any(size < 0 for size in tensor.shape):
                raise InvalidRequest(
                    f"node {self.name or self.op}: shape {tensor.shape} has an unknown dimension; infer shapes for a"
                    " given batch first"
                )

    @property
    def is_known(self) -> bool:
        """Whether its operations are counted by a rule; otherwise one for each element of its outputs."""
        return self.op in _COUNTED or self.op in _FREE or self.op in _PER_OUTPUT or self.op in _PER_INPUT

    @property
    def flops(self) -> int:
        """Arithmetic operations.

        Raises
        ------
        InvalidRequest
            If an input or output that the count needs is left out, or has too few dimensions.
        """
        if self.op in _FREE:
            return 0
        try:
            if self.op in _COUNTED:
                return _COUNTED[self.op](self)
            if self.op in _PER_INPUT:
                return _PER_INPUT[self.op] * _given(self.inputs, 0).size
        except (IndexError, ZeroDivisionError) as error:
            shapes = ", ".join("-" if tensor is None else str(tensor.shape) for tensor in self.inputs)
            raise InvalidRequest(
                f"node {self.name or self.op}: inputs of shapes {shapes} do not fit the operator {self.op}"
            ) from error
        return _PER_OUTPUT.get(self.op, 1) * _output_size(self)

    @property
    def weight_nbytes(self) -> int:
        """Bytes of the inputs that are weights."""
        return sum(tensor.nbytes for tensor in self.inputs if tensor is not None and tensor.constant)

    @property
    def nbytes(self) -> int:
        """Bytes read and written when every input and output crosses the memory once; 0 where nothing is moved."""
        if self.op in _VIEWS:
            return 0
        return sum(tensor.nbytes for tensor in self.inputs + self.outputs if tensor is not None)


def _given(tensors: tuple[Tensor | None, ...], at: int) -> Tensor:
    tensor = tensors[at]
    if tensor is None:
        raise IndexError(at)
    return tensor


def _output_size(node: Node) -> int:
    return sum(tensor.size for tensor in node.outputs if tensor is not None)


def _convolution(node: Node, weight: int, bias: int) -> int:
    kernel, out = _given(node.inputs, weight), _given(node.outputs, 0).size
    has_bias = len(node.inputs) > bias and node.inputs[bias] is not None
    return 2 * out * (kernel.size // kernel.shape[0]) + out * has_bias


def _transposed_convolution(node: Node) -> int:
    kernel = _given(node.inputs, 1)
    has_bias = len(node.inputs) > 2 and node.inputs[2] is not None
    multiplied = 2 * _given(node.inputs, 0).size * (kernel.size // kernel.shape[0])
    return multiplied + _given(node.outputs, 0).size * has_bias


def _matrix_product(node: Node) -> int:
    return 2 * _given(node.outputs, 0).size * _given(node.inputs, 0).shape[-1]


def _general_matrix_product(node: Node) -> int:
    first, out = _given(node.inputs, 0), _given(node.outputs, 0).size
    added = len(node.inputs) > 2 and node.inputs[2] is not None
    return 2 * out * first.shape[0 if node.attributes.get("transA") else 1] + out * added


def _recurrent(node: Node) -> int:
    """A step multiplies by all weights; what gates do to single elements counts as one operation for each of theirs."""
    steps_and_batch = prod(_given(node.inputs, 0).shape[:2])
    weight, recurrence = _given(node.inputs, 1), _given(node.inputs, 2)
    return steps_and_batch * (2 * (weight.size + recurrence.size) + prod(weight.shape[:2]))


def _pool(node: Node) -> int:
    window: int = prod(node.attributes.get("kernel_shape", (1,)))
    return _given(node.outputs, 0).size * window


def _attention(node: Node) -> int:
    """Scores and weighted values; with a matrix of weights as second input also the projections to Q, K and V."""
    query, second = _given(node.inputs, 0), _given(node.inputs, 1)
    if len(second.shape) == 2:
        width = second.shape[1] // 3
        return 2 * query.size * second.shape[1] + 4 * query.size // query.shape[-1] * query.shape[-2] * width
    return 4 * query.size * second.shape[-2]


def _einstein_sum(node: Node) -> int:
    """Twice the product of all index ranges, as if it were one loop."""
    terms = str(node.attributes.get("equation", "")).split("->")[0].replace(" ", "").split(",")
    if "..." in "".join(terms) or len(terms) != len(node.inputs):
        return _output_size(node)
    ranges = {
        letter: _given(node.inputs, at).shape[place]
        for at, term in enumerate(terms)
        for place, letter in enumerate(term)
    }
    return (2 if len(terms) > 1 else 1) * prod(ranges.values())


_COUNTED: dict[str, Callable[[Node], int]] = {
    "Conv": lambda node: _convolution(node, 1, 2),
    "FusedConv": lambda node: _convolution(node, 1, 2),
    "NhwcFusedConv": lambda node: _convolution(node, 1, 2),
    "ConvInteger": lambda node: _convolution(node, 1, 99),
    "QLinearConv": lambda node: _convolution(node, 3, 8),
    "ConvTranspose": _transposed_convolution,
    "MatMul": _matrix_product,
    "FusedMatMul": _matrix_product,
    "MatMulInteger": _matrix_product,
    "MatMulIntegerToFloat": _matrix_product,
    "MatMulNBits": _matrix_product,
    "QGemm": _matrix_product,
    "DynamicQuantizeMatMul": _matrix_product,
    "QLinearMatMul": _matrix_product,
    "Gemm": _general_matrix_product,
    "FusedGemm": _general_matrix_product,
    "LSTM": _recurrent,
    "GRU": _recurrent,
    "RNN": _recurrent,
    "Attention": _attention,
    "MultiHeadAttention": _attention,
    "AveragePool": _pool,
    "MaxPool": _pool,
    "LpPool": _pool,
    "Einsum": _einstein_sum,
}
_VIEWS = frozenset(
    {
        "Constant", "Dropout", "Flatten", "Identity", "If", "Loop", "Reshape", "Scan", "Shape", "Size", "Squeeze",
        "Unsqueeze",
    }
)  # fmt: skip
"""Move nothing; what is inside of a branch or loop counts by itself."""
_FREE = _VIEWS | frozenset(
    {
        "Cast", "CastLike", "Compress", "Concat", "ConstantOfShape", "DepthToSpace", "Expand", "EyeLike", "Gather",
        "GatherElements", "GatherND", "NonZero", "OneHot", "Pad", "QLinearConcat", "Range", "ReorderInput",
        "ReorderOutput", "ReverseSequence", "ScatterElements", "ScatterND", "Slice", "SpaceToDepth", "Split", "Tile",
        "Transpose", "Trilu", "Where",
    }
)  # fmt: skip
"""Move data without arithmetic."""
_PER_OUTPUT = dict.fromkeys(
    (
        "Abs", "Add", "And", "Ceil", "Celu", "Clip", "Cos", "Div", "Elu", "Equal", "Erf", "Exp", "Floor", "Greater",
        "GreaterOrEqual", "HardSigmoid", "IsInf", "IsNaN", "LeakyRelu", "Less", "LessOrEqual", "Log", "Max", "Mean",
        "Min", "Mod", "Mul", "Neg", "Not", "Or", "PRelu", "Pow", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid",
        "Sign", "Sin", "Softsign", "Sqrt", "Sub", "Sum", "Tanh", "ThresholdedRelu", "Xor",
    ),
    1,
) | {
    "BatchNormalization": 2, "DequantizeLinear": 2, "QuantizeLinear": 2, "DynamicQuantizeLinear": 3, "HardSwish": 4,
    "Gelu": 8, "FastGelu": 8, "BiasGelu": 9, "QuickGelu": 4, "Mish": 5, "Softplus": 3, "Resize": 7, "Upsample": 7,
    "QLinearAdd": 3, "QLinearMul": 3, "QLinearSigmoid": 3, "QLinearLeakyRelu": 3, "RotaryEmbedding": 3,
}  # fmt: skip
"""Operations for each element of the outputs."""
_PER_INPUT = dict.fromkeys(
    (
        "ArgMax", "ArgMin", "CumSum", "GlobalAveragePool", "GlobalMaxPool", "ReduceL1", "ReduceMax", "ReduceMean",
        "QLinearGlobalAveragePool", "ReduceLogSum", "ReduceMin", "ReduceProd", "ReduceSum", "TopK",
    ),
    1,
) | {
    "ReduceL2": 2, "ReduceSumSquare": 2, "Softmax": 5, "LogSoftmax": 5, "LayerNormalization": 8,
    "SkipLayerNormalization": 9, "SimplifiedLayerNormalization": 5, "InstanceNormalization": 8,
    "GroupNormalization": 8, "EmbedLayerNormalization": 10, "SkipSimplifiedLayerNormalization": 6, "LRN": 6,
    "LpNormalization": 3, "MeanVarianceNormalization": 5, "ReduceLogSumExp": 3, "Hardmax": 1,
}  # fmt: skip
"""Operations for each element of the first input."""
