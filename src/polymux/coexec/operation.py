"""What co-execution has to know of an operation: its outputs, how it can be split, which kernels run a piece of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from polymux.core.errors import InvalidRequest
from polymux.core.implementation import Implementation
from polymux.core.kernel_spec import KernelSpec
from polymux.perfmodel.coexec.precision import Precision
from polymux.perfmodel.coexec.problem import Problem

Array = NDArray[Any]
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChunkKernel:
    """A kernel that computes a piece of an operation.

    Parameters
    ----------
    name : str
        In the dispatch table. It takes the operation's arrays whole and, as scalars, which part of the axis it computes
        (`Way.first`, `Way.count`); of the outputs it writes only that part.
    precision : {"fp64", "fp32", "tf32", "bf16", "fp16"}, optional
        What it computes in; None: in that of the arrays.
    dtypes : tuple of str
        Element types that it takes, as NumPy names them; empty: any.
    spec : KernelSpec, optional
        Where the kernel is not built in: what it takes. The session registers it then.
    implementations : tuple of Implementation
        One for each kind of device that can run it.
    """

    name: str
    precision: Precision | None = None
    dtypes: tuple[str, ...] = ()
    spec: KernelSpec | None = None
    implementations: tuple[Implementation, ...] = ()


@dataclass(frozen=True, slots=True)
class Way:
    """One way to split a call: along which axis, and where that axis lies in the arrays.

    Parameters
    ----------
    problem : Problem
        Sizes, work and bytes, for the performance model; its extent is the axis'.
    inputs : tuple of (int or None)
        Axis of each input that is split; None: whoever computes needs all of it.
    outputs : tuple of int
        The same of the outputs, which are always split.
    across_inputs : tuple of (int or None)
        A second axis along which pieces may be cut for devices whose memory is too small; empty: none.
    across_outputs : tuple of int
    halo : int
        Neighbours on either side that computing an element of the axis needs of split inputs.
    first, count : str
        Scalars of the kernels: where the piece begins, and its length.
    scalars : mapping of str to number
        Further scalars of the kernels.
    """

    problem: Problem
    inputs: tuple[int | None, ...]
    outputs: tuple[int, ...]
    across_inputs: tuple[int | None, ...] = ()
    across_outputs: tuple[int, ...] = ()
    halo: int = 0
    first: str = "first"
    count: str = "count"
    scalars: Mapping[str, float | int | bool] = field(default_factory=dict)


class Operation(ABC):
    """An operation that several devices can compute together.

    A subclass says what its outputs are (`outputs`), how a call can be split (`ways`), and which kernels compute a
    piece (`kernels`). Everything else follows: the session measures the devices, plans, moves pieces to devices with
    memory of their own and joins what they give, and has pieces of a device that is late or fails computed by others.
    """

    name: ClassVar[str]
    """Under which times are kept."""
    kernels: ClassVar[tuple[ChunkKernel, ...]]
    """All kernels that compute pieces; a device that can run several has them as alternatives."""

    @abstractmethod
    def outputs(self, *inputs: Array, **parameters: Any) -> Sequence[tuple[Shape, np.dtype[Any]]]:
        """Check a call, and say shape and dtype of each output.

        Raises
        ------
        InvalidRequest
            For inputs that do not fit, with their shapes and what would.
        """

    @abstractmethod
    def ways(self, *inputs: Array, **parameters: Any) -> Sequence[Way]:
        """List the ways to split a call that has been checked, at least one."""

    def of_nothing(self, results: Sequence[Array]) -> None:
        """Compute a call with an input that has no elements, of which the results have some.

        No kernel runs then. An operation that has an answer, such as one that sums, fills the results here.

        Raises
        ------
        InvalidRequest
            By default.
        """
        shapes = " and ".join(str(result.shape) for result in results)
        raise InvalidRequest(
            f"{self.name} with an input of no elements, for a result of shape {shapes}: give inputs with elements, or"
            f" define {type(self).__qualname__}.of_nothing"
        )

    def along(
        self,
        *inputs: Array,
        sizes: Sequence[float],
        axis: int,
        work: float,
        input_axes: Sequence[int | None],
        output_axes: Sequence[int] = (0,),
        halo: int = 0,
        scalars: Mapping[str, float | int | bool] | None = None,
        **parameters: Any,
    ) -> Way:
        """Make a way to split from what is particular to the operation.

        Parameters
        ----------
        *inputs : ndarray
        sizes : sequence of float
            The call's sizes, from which the time is predicted; always in the same order.
        axis : int
            Which of them is split.
        work : float
            Arithmetic operations of the whole call.
        input_axes, output_axes, halo, scalars
            As in `Way`.
        **parameters
            Of the call.
        """
        extent = max(int(sizes[axis]), 1)
        split = [array for array, at in zip(inputs, input_axes, strict=True) if at is not None]
        fixed = [array for array, at in zip(inputs, input_axes, strict=True) if at is None]
        written = sum(
            int(np.prod(shape)) * np.dtype(dtype).itemsize
            for shape, dtype in self.outputs(*inputs, **parameters)
        )
        problem = Problem(
            self.name,
            tuple(float(size) for size in sizes),
            axis,
            unit_work=work / extent,
            in_nbytes=sum(array.nbytes for array in split) / extent,
            fixed_nbytes=float(sum(array.nbytes for array in fixed)),
            out_nbytes=written / extent,
        )
        return Way(problem, tuple(input_axes), tuple(output_axes), halo=halo, scalars=dict(scalars or {}))
