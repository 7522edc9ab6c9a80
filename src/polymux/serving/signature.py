"""The tensors of a model as its clients see them, and what they must look like in a request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from polymux.core.dtype import DType
from polymux.serving.datatype import PROTOCOL_NAMES
from polymux.serving.errors import RequestError

__all__ = ["Extents", "ModelSignature", "TensorSignature"]

#: A shape whose unknown extents are None; None as a whole: any rank.
Extents = tuple[int | None, ...] | None


@dataclass(frozen=True, slots=True)
class TensorSignature:
    """One input or output of a model.

    Attributes
    ----------
    name : str
        Name in requests and in the model.
    dtype : DType
        Element type.
    shape : tuple of (int or None), or None
        Shape in requests and answers, batch dimension included; None stands for an extent of any size, or, instead of
        the tuple, for any shape.
    model_shape : tuple of (int or None), or None
        Shape that the model itself takes or gives; differs from `shape` where the configuration has a ``reshape``.
    """

    name: str
    dtype: DType
    shape: Extents
    model_shape: Extents

    def to_model(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape that the model sees for a request's `shape`."""
        return _carry(shape, self.shape, self.model_shape)

    def from_model(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape that the client sees for the model's `shape`."""
        return _carry(shape, self.model_shape, self.shape)

    def metadata(self) -> dict[str, object]:
        """Return the tensor as the protocol's metadata object, with -1 for an extent of any size."""
        extents = (None,) if self.shape is None else self.shape
        return {
            "name": self.name,
            "datatype": PROTOCOL_NAMES[self.dtype],
            "shape": [-1 if extent is None else extent for extent in extents],
        }

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Raise `RequestError` (400) unless a request may send this shape."""
        if self.shape is None:
            return
        if len(shape) == len(self.shape) and all(
            want is None or want == got for want, got in zip(self.shape, shape, strict=True)
        ):
            return
        expected = [-1 if extent is None else extent for extent in self.shape]
        raise RequestError(
            400,
            f"input '{self.name}': shape {list(shape)} does not fit the model's {expected} (-1: any size)",
        )


@dataclass(frozen=True, slots=True)
class ModelSignature:
    """All inputs and outputs of a model version, in the model's order.

    Attributes
    ----------
    inputs, outputs : mapping of str to TensorSignature
        By name.
    max_batch_size : int
        Greatest first extent of each input; 0 when the model has no batch dimension that the front end knows of.
    """

    inputs: Mapping[str, TensorSignature]
    outputs: Mapping[str, TensorSignature]
    max_batch_size: int

    def check_batch(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Raise `RequestError` (400) unless all inputs have one batch size between 1 and `max_batch_size`."""
        if self.max_batch_size == 0:
            return
        sizes = {name: shape[0] for name, shape in shapes.items()}
        if len(set(sizes.values())) > 1:
            raise RequestError(400, f"the inputs have different batch sizes (first extents): {sizes}")
        size = next(iter(sizes.values()))
        if not 1 <= size <= self.max_batch_size:
            raise RequestError(
                400, f"batch size {size} is outside 1 to {self.max_batch_size} (max_batch_size of the model)"
            )


def _carry(shape: tuple[int, ...], source: Extents, target: Extents) -> tuple[int, ...]:
    """Rewrite `shape` from the pattern `source` to `target`; the free extents keep their values and order."""
    if source == target or source is None or target is None:
        return shape
    free = iter([extent for extent, want in zip(shape, source, strict=True) if want is None])
    return tuple(next(free) if extent is None else extent for extent in target)
