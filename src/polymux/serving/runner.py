"""What the front end needs of the core to run one loaded model version."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from polymux.core.dtype import DType

__all__ = ["ModelRunner", "TensorBuffer"]


class TensorBuffer(Protocol):
    """Memory for one tensor, where the device reads and writes it."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor; of an output, after its task, the shape that the model gave it."""

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return the tensor as a writable array, without a copy."""

    def close(self) -> None:
        """Give the memory back; a second call does nothing."""


class ModelRunner(Protocol):
    """Runs one model version."""

    def check_room(self) -> None:
        """Raise `RequestError` (503) when no further request may come now; called before its body is read."""

    def allocate(self, shape: tuple[int, ...], dtype: DType) -> TensorBuffer:
        """Return memory for an input."""

    async def run(
        self, inputs: Sequence[TensorBuffer], *, priority: int, arrival_ns: int, deadline_ns: int | None
    ) -> Sequence[TensorBuffer]:
        """Run the model.

        Parameters
        ----------
        inputs : sequence of TensorBuffer
            In the model's order. They stay the caller's.
        priority : int
            Hint to the scheduler, as in a request: 0 default, 1 highest.
        arrival_ns : int
            Monotonic time at which the request came.
        deadline_ns : int or None
            Monotonic time after which the result has no use; None: the request says nothing.

        Returns
        -------
        sequence of TensorBuffer
            The outputs in the model's order, complete; now the caller's to close.
        """

    def close(self) -> None:
        """Unload the model; running requests end first."""
