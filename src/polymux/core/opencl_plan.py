"""What an OpenCL implementation enqueues for one task: values that a kernel makes and a device carries out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from polymux.core.dtype import DType
from polymux.core.kernel_spec import KernelSpec
from polymux.core.task_view import BufferView


@dataclass(frozen=True, slots=True)
class BufferArgument:
    """A pointer to the task's buffer number `index` (inputs first, then outputs)."""

    index: int


@dataclass(frozen=True, slots=True)
class ScratchArgument:
    """A pointer to the plan's scratch memory number `index`; its content does not outlive the task."""

    index: int


@dataclass(frozen=True, slots=True)
class LocalArgument:
    """Local memory of each work-group, in bytes."""

    nbytes: int


@dataclass(frozen=True, slots=True)
class ScalarArgument:
    """A value passed by copy as the OpenCL C type of `dtype`."""

    dtype: DType
    value: float | int | bool


OpenCLArgument = BufferArgument | ScratchArgument | LocalArgument | ScalarArgument


@dataclass(frozen=True, slots=True)
class OpenCLLaunch:
    """One call of the `__kernel` function `entry`.

    Parameters
    ----------
    entry : str
        Name of the function in the program.
    arguments : tuple of OpenCLArgument
        In the order of the function's parameters.
    global_size : tuple of int, work-items
        One to three dimensions, each positive and, where `local_size` is given, a multiple of it.
    local_size : tuple of int or None, work-items
        None leaves the choice to the OpenCL implementation.
    """

    entry: str
    arguments: tuple[OpenCLArgument, ...]
    global_size: tuple[int, ...]
    local_size: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class OpenCLPlan:
    """The launches of one task, carried out one after the other; none for a task with nothing to do.

    Parameters
    ----------
    launches : tuple of OpenCLLaunch
    options : tuple of str
        Build options that depend on the task, such as ``"-DT=float"``; the device keeps one program per
        source and options. A program binary takes none.
    scratch_nbytes : tuple of int, bytes
        Size of each piece of device memory that the launches share, each positive.
    """

    launches: tuple[OpenCLLaunch, ...] = ()
    options: tuple[str, ...] = ()
    scratch_nbytes: tuple[int, ...] = ()


class OpenCLPlanner(Protocol):
    """Makes the plan of a task of kernel `spec` from its buffers (inputs, then outputs) and scalars; pure.

    A plan is used again for tasks with the same scalars whose buffers have the same dtypes, shapes and accesses, and
    are given in the same places where one is given several times.

    Raises
    ------
    InvalidRequest
        The buffers' shapes or dtypes do not fit each other; names the argument, its shape and the expected one.
    """

    def __call__(
        self, spec: KernelSpec, buffers: Sequence[BufferView], scalars: Mapping[str, float | int | bool], /
    ) -> OpenCLPlan:
        """Make the plan."""
        ...
