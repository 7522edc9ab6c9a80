"""Shapes of a model's outputs for any batch, seen at one item and at two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polymux.onnxgraph.inputs import ItemInput, batch_of
from polymux.onnxgraph.running import run


@dataclass(frozen=True, slots=True)
class OutputShapes:
    """Shapes and types of all outputs.

    Parameters
    ----------
    dtypes : tuple of numpy.dtype
    one : tuple of tuple of int
        Shapes for one item.
    more : tuple of tuple of int
        By how much each extent grows for each further item.
    """

    dtypes: tuple[np.dtype[Any], ...]
    one: tuple[tuple[int, ...], ...]
    more: tuple[tuple[int, ...], ...]

    def of(self, batch: int) -> list[tuple[int, ...]]:
        """Return the shapes for a batch."""
        return [
            tuple(extent + grows * (batch - 1) for extent, grows in zip(first, growth, strict=True))
            for first, growth in zip(self.one, self.more, strict=True)
        ]


def output_shapes(model: Any, inputs: Sequence[ItemInput], several: int = 2) -> OutputShapes:
    """Run a model on one item and on `several`, 1 or 2, and see what shapes come out.

    Raises
    ------
    InvalidRequest
        If it does not run on them.
    """
    rng = np.random.default_rng(0)
    first, last = (list(run(model, batch_of(inputs, batch, rng)).values()) for batch in (1, several))
    more = tuple(
        tuple(b - a for a, b in zip(one.shape, two.shape, strict=True))
        for one, two in zip(first, last, strict=True)
    )
    return OutputShapes(tuple(array.dtype for array in first), tuple(array.shape for array in first), more)
