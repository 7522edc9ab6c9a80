"""Python and native kernels made ready for the cores of a share."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polymux.core.errors import InvalidRequest
from polymux.core.implementation import NativeFunction, PythonFunction
from polymux.core.kernel_spec import KernelSpec
from polymux.core.status import TaskStatus
from polymux.device import native_library
from polymux.device.host_arrays import check_shapes, operand_array
from polymux.device.protocol import LaunchError, NativeCaller, Operand, Scalars, Shapes
from polymux.device.thread_team import ThreadTeam


class PreparedPython:
    """A Python callable, ready to run.

    Notes
    -----
    It may return None, what NumPy's ``out=`` returns (its own outputs), or the actual shapes of its outputs as a
    list of tuples. Anything else is an error, since its result would be lost.
    """

    def __init__(self, spec: KernelSpec, implementation: PythonFunction, team: ThreadTeam) -> None:
        self._spec = spec
        self._function = implementation.function
        self._extra: Mapping[str, Any] = {"team": team} if implementation.parallel else {}

    def run(self, operands: Sequence[Operand], scalars: Scalars) -> Shapes | None:
        """Call the function; see `polymux.device.protocol.Prepared`."""
        arrays = [operand_array(operand) for operand in operands]
        try:
            returned = self._function(*arrays, **scalars, **self._extra)
        except LaunchError:
            raise
        except InvalidRequest as error:
            raise LaunchError(TaskStatus.BAD_ARGUMENT, str(error)) from error
        except MemoryError as error:
            message = f"the host's memory is used up: {error}"
            raise LaunchError(TaskStatus.OUT_OF_MEMORY, message) from error
        except BaseException as error:  # a kernel may raise SystemExit as well; it must not end the thread
            message = f"it raised {describe_exception(error)}"
            raise LaunchError(TaskStatus.KERNEL_FAILED, message) from error
        if returned is None or _are_outputs(returned, arrays):
            return None
        return check_shapes(self._spec, self._shapes(returned), operands)

    def _shapes(self, returned: object) -> Shapes:
        if isinstance(returned, (list, tuple)) and all(isinstance(shape, tuple) for shape in returned):
            return list(returned)
        raise LaunchError(
            TaskStatus.KERNEL_FAILED,
            f"it returned a {type(returned).__name__}, which would be lost; write results into the"
            " output arrays (y[...] = ...) and return None, or the outputs' actual shapes as a list of tuples",
        )


class PreparedNative:
    """A C function, ready to run."""

    def __init__(
        self, spec: KernelSpec, implementation: NativeFunction, caller: NativeCaller | None, threads: int
    ) -> None:
        if caller is None:
            raise LaunchError(
                TaskStatus.KERNEL_FAILED,
                "it is a native kernel; this device was opened without a caller of such",
            )
        self._spec = spec
        self._caller = caller
        self._threads = threads if implementation.threads else 1
        self.address = native_library.resolve(implementation)

    def run(self, operands: Sequence[Operand], scalars: Scalars) -> Shapes | None:
        """Call the function; see `polymux.device.protocol.Prepared`."""
        try:
            args = self._spec.pack(scalars)
        except InvalidRequest as error:
            raise LaunchError(TaskStatus.BAD_ARGUMENT, str(error)) from error
        arrays = [_exportable(operand_array(operand)) for operand in operands]
        accesses = [int(operand.view.access) for operand in operands]
        dtypes = [int(operand.view.dtype) for operand in operands]
        code, message = self._caller(self.address, arrays, accesses, args, self._threads, dtypes)
        if code:
            refused = code == TaskStatus.BAD_ARGUMENT
            status = TaskStatus.BAD_ARGUMENT if refused else TaskStatus.KERNEL_FAILED
            raise LaunchError(status, message or f"it returned {code} and said nothing")
        return None


def describe_exception(error: BaseException) -> str:
    """Write an exception as one line: type, text and where it was raised."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    if len(frames) > 1:  # the first one is the caller's
        text += f" ({frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name})"
    return text


def _exportable(array: NDArray[Any]) -> NDArray[Any]:
    """View bfloat16, a type of another package, as one that NumPy can hand to C++."""
    return array if array.dtype.isbuiltin == 1 else array.view(np.uint16)


def _are_outputs(returned: object, arrays: Sequence[NDArray[Any]]) -> bool:
    values = returned if isinstance(returned, (list, tuple)) else (returned,)
    return len(values) > 0 and all(any(value is array for array in arrays) for value in values)
