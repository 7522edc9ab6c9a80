"""A single OpenCL launch said without code, so that a kernels file or an application can give it as text."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from polymux.core.dtype import DType
from polymux.core.errors import InvalidRequest
from polymux.core.kernel_spec import KernelSpec
from polymux.core.opencl_plan import (
    BufferArgument,
    OpenCLArgument,
    OpenCLLaunch,
    OpenCLPlan,
    ScalarArgument,
)
from polymux.core.task_view import BufferView

Term = int | str
"""An integer, a scalar's name, or a buffer's property: ``x.size``, ``x.nbytes``, ``x.ndim``, ``x.shape[0]``."""

_PROPERTY = re.compile(r"(?P<buffer>\w+)\.(?:(?P<word>size|nbytes|ndim)|shape\[(?P<axis>-?\d+)\])")


@dataclass(frozen=True, slots=True)
class OpenCLRange:
    """A planner of one launch whose sizes and arguments are terms.

    Parameters
    ----------
    entry : str
        The ``__kernel`` function. Its parameters are the buffers (inputs, then outputs), then `arguments`.
    global_size : tuple of Term, work-items
        One to three dimensions; rounded up to multiples of `local_size`, so the function checks its bounds.
    local_size : tuple of int, work-items, optional
    arguments : tuple of Term, optional
        None: the scalars in the order of the spec. A scalar has the C type of its dtype, a buffer's property is a
        ``long``, an integer an ``int``.
    """

    entry: str
    global_size: tuple[Term, ...]
    local_size: tuple[int, ...] | None = None
    arguments: tuple[Term, ...] | None = None

    def check(self, spec: KernelSpec) -> None:
        """Check every term against the names of `spec`.

        Raises
        ------
        InvalidRequest
            If a term names neither a scalar nor a property of a buffer, or the number of dimensions is impossible.
        """
        if not 1 <= len(self.global_size) <= 3:
            raise InvalidRequest(f"global_size has {len(self.global_size)} dimensions; give 1 to 3")
        if self.local_size is not None:
            if len(self.local_size) != len(self.global_size):
                raise InvalidRequest(
                    f"local_size has {len(self.local_size)} dimensions and global_size {len(self.global_size)}; "
                    "give as many"
                )
            if any(size < 1 for size in self.local_size):
                raise InvalidRequest(f"local_size is {self.local_size}; give positive numbers")
        for term in (*self.global_size, *(self.arguments or ())):
            _check_term(spec, term)

    def __call__(
        self, spec: KernelSpec, buffers: Sequence[BufferView], scalars: Mapping[str, float | int | bool]
    ) -> OpenCLPlan:
        """Make the plan; no launch when a dimension of the global size is zero."""
        sizes = [_number(spec, buffers, scalars, term) for term in self.global_size]
        if any(size < 0 for size in sizes):
            raise InvalidRequest(f"global size {tuple(sizes)} is negative; check {self.global_size}")
        if 0 in sizes:
            return OpenCLPlan()
        if self.local_size is not None:
            sizes = [-(-size // local) * local for size, local in zip(sizes, self.local_size, strict=True)]
        terms = self.arguments if self.arguments is not None else tuple(s.name for s in spec.scalars)
        arguments: list[OpenCLArgument] = [BufferArgument(index) for index in range(len(buffers))]
        arguments += [_argument(spec, buffers, scalars, term) for term in terms]
        return OpenCLPlan((OpenCLLaunch(self.entry, tuple(arguments), tuple(sizes), self.local_size),))


def _check_term(spec: KernelSpec, term: Term) -> None:
    if isinstance(term, int) or any(scalar.name == term for scalar in spec.scalars):
        return
    found = _PROPERTY.fullmatch(term)
    names = [buffer.name for buffer in (*spec.inputs, *spec.outputs)]
    if found is None or found["buffer"] not in names:
        scalars = [scalar.name for scalar in spec.scalars]
        raise InvalidRequest(
            f"term {term!r} is unknown; give an integer, a scalar ({', '.join(scalars) or 'there is none'}), or "
            f".size, .nbytes, .ndim or .shape[i] of a buffer ({', '.join(names) or 'there is none'})"
        )


def _number(
    spec: KernelSpec,
    buffers: Sequence[BufferView],
    scalars: Mapping[str, float | int | bool],
    term: Term,
) -> int:
    if isinstance(term, int):
        return term
    if term in scalars:
        return int(scalars[term])
    found = _PROPERTY.fullmatch(term)
    names = [buffer.name for buffer in (*spec.inputs, *spec.outputs)]
    if found is None or found["buffer"] not in names:
        raise InvalidRequest(f"term {term!r} is unknown")
    buffer = buffers[names.index(found["buffer"])]
    if found["axis"] is not None:
        axis = int(found["axis"])
        if not -len(buffer.shape) <= axis < len(buffer.shape):
            raise InvalidRequest(f"{found['buffer']} has shape {buffer.shape}, {term} needs more dimensions")
        return buffer.shape[axis]
    return {"size": math.prod(buffer.shape), "nbytes": buffer.nbytes, "ndim": len(buffer.shape)}[
        found["word"]
    ]


def _argument(
    spec: KernelSpec,
    buffers: Sequence[BufferView],
    scalars: Mapping[str, float | int | bool],
    term: Term,
) -> OpenCLArgument:
    for scalar in spec.scalars:
        if scalar.name == term:
            return ScalarArgument(scalar.dtype, scalars[term])
    dtype = DType.I32 if isinstance(term, int) else DType.I64
    return ScalarArgument(dtype, _number(spec, buffers, scalars, term))
