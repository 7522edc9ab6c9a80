"""An input stage: a kernel for one item, with room for its results."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from polymux.core.errors import PolymuxError, task_failed
from polymux.core.kernel_spec import BufferParam
from polymux.core.status import TaskStatus

__all__ = ["InputStage", "Results", "key_of"]

Array = NDArray[Any]
Results = tuple[Array, ...]
"""The tensors of one item, in the order of the stage's outputs; nobody may write to them."""


@dataclass(frozen=True, slots=True)
class InputStage:
    """A kernel that makes tensors of raw inputs, on the cores of the host.

    Parameters
    ----------
    name : str
        How it is called in messages and metrics.
    identity : str
        Everything that the results depend on besides the inputs' bytes: stages of the same identity give the same.
    inputs : tuple of BufferParam
        What it takes, each of one dtype.
    outputs : tuple of BufferParam
        The tensors that it makes; each has one dtype and a full shape, which is the room for its result.
    function : callable
        Called as ``function(*inputs, *outputs)``, in any thread and in several at a time. Writes its outputs in place
        and returns None, or their actual shapes where a result is smaller than its room.
    """

    name: str
    identity: str
    inputs: tuple[BufferParam, ...]
    outputs: tuple[BufferParam, ...]
    function: Callable[..., Sequence[Sequence[int]] | None]

    def run(self, inputs: Sequence[Array]) -> Results:
        """Run it for one item, in the calling thread.

        Parameters
        ----------
        inputs : sequence of ndarray
            In the order of `inputs`.

        Returns
        -------
        tuple of ndarray

        Raises
        ------
        InvalidRequest
            When the stage does not take the inputs: a broken file, a text that is no UTF-8.
        KernelFailed
            When the stage fails.
        """
        try:
            outputs = [
                np.empty(cast("tuple[int, ...]", param.shape), param.dtypes[0].to_numpy())
                for param in self.outputs
            ]
            shapes = self.function(*inputs, *outputs)
            results = outputs if shapes is None else self._cut(outputs, shapes)
        except PolymuxError:
            raise
        except Exception as error:
            raise self._failed(f"the input stage failed: {type(error).__name__}: {error}") from error
        for array in results:
            array.flags.writeable = False
        return tuple(results)

    def _cut(self, outputs: Sequence[Array], shapes: Sequence[Sequence[int]]) -> list[Array]:
        if len(shapes) != len(outputs):
            raise self._failed(f"it returned {len(shapes)} shapes for {len(outputs)} outputs")
        results = []
        for array, shape, param in zip(outputs, shapes, self.outputs, strict=True):
            extents = tuple(int(extent) for extent in shape)
            if min(extents, default=0) < 0 or prod(extents) > array.size:
                raise self._failed(
                    f"it returned {extents} as the shape of '{param.name}', which has room for {array.shape}"
                )
            results.append(array.reshape(-1)[: prod(extents)].reshape(extents))
        return results

    def _failed(self, message: str) -> PolymuxError:
        return task_failed(TaskStatus.KERNEL_FAILED, "", 0, self.name, message)


def key_of(stage: InputStage, inputs: Sequence[Array]) -> bytes:
    """Digest a stage and what it gets: results with the same key are the same.

    Notes
    -----
    BLAKE2b with 128 bits; about a millisecond for each MiB of input.
    """
    digest = hashlib.blake2b(stage.identity.encode(), digest_size=16)
    for array in inputs:
        digest.update(f"\0{array.dtype.str}{array.shape}\0".encode())
        digest.update(np.ascontiguousarray(array).view(np.uint8).data)
    return digest.digest()
