"""OpenCL kernels made ready for one command queue: a task's plan, carried out."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from operator import mod
from typing import Any

import numpy as np

from polymux.core.dtype import DType
from polymux.core.errors import InvalidRequest
from polymux.core.implementation import OpenCLBinary, OpenCLSource
from polymux.core.kernel_spec import KernelSpec
from polymux.core.opencl_plan import (
    BufferArgument,
    LocalArgument,
    OpenCLArgument,
    OpenCLLaunch,
    OpenCLPlan,
    OpenCLPlanner,
    ScalarArgument,
    ScratchArgument,
)
from polymux.core.status import TaskStatus
from polymux.device.cpu_kernels import describe_exception
from polymux.device.opencl_error import driver_errors
from polymux.device.opencl_program import KernelFunction, Programs, kernel_functions
from polymux.device.protocol import LaunchError, Operand, Scalars

_MAX_VARIANTS = 32
_KEPT_SCRATCH_NBYTES = 64 << 20


class OpenCLQueue:
    """A command queue with what launches on it need.

    Parameters
    ----------
    cl : module
        pyopencl.
    queue : pyopencl.CommandQueue
    name : str
        The device's id, for errors.
    """

    def __init__(self, cl: Any, queue: Any, name: str) -> None:
        self.cl = cl
        self.queue = queue
        self.name = name
        self.device = queue.device
        self._max_dimensions = int(self.device.max_work_item_dimensions)
        self._local_nbytes = int(self.device.local_mem_size)
        self._scratch: list[Any] = []

    def run(
        self,
        plan: OpenCLPlan,
        functions: Mapping[str, KernelFunction],
        operands: Sequence[Operand],
    ) -> None:
        """Enqueue a plan's launches and wait for the last.

        Raises
        ------
        LaunchError
            If the plan does not fit its kernels or the device, or the driver fails.
        """
        with driver_errors(self.cl, "its launch failed"):
            scratch = self._scratch_buffers(plan.scratch_nbytes)
            try:
                for launch in plan.launches:
                    function = functions.get(launch.entry)
                    if function is None:
                        has = ", ".join(sorted(functions))
                        raise _failed(f"its program has no function {launch.entry!r}; it has {has}")
                    self._enqueue(function, launch, operands, scratch)
            finally:
                self.queue.finish()
                self._scratch = [buffer for buffer in scratch if buffer.size <= _KEPT_SCRATCH_NBYTES]

    def _enqueue(
        self,
        function: KernelFunction,
        launch: OpenCLLaunch,
        operands: Sequence[Operand],
        scratch: list[Any],
    ) -> None:
        if len(launch.arguments) != function.num_args:
            has = len(launch.arguments)
            raise _failed(
                f"function {launch.entry!r} takes {function.num_args} arguments, its plan has {has}"
            )
        self._check_sizes(function, launch)
        kernel = function.kernel
        for index, argument in enumerate(launch.arguments):
            kernel.set_arg(index, self._argument(argument, operands, scratch))
        self.cl.enqueue_nd_range_kernel(self.queue, kernel, launch.global_size, launch.local_size)

    def _argument(self, argument: OpenCLArgument, operands: Sequence[Operand], scratch: list[Any]) -> Any:
        match argument:
            case BufferArgument(index) if 0 <= index < len(operands):
                return operands[index].memory
            case ScratchArgument(index) if 0 <= index < len(scratch):
                return scratch[index]
            case LocalArgument(nbytes):
                return self.cl.LocalMemory(nbytes)
            case ScalarArgument(dtype, value) if dtype is not DType.BF16:
                return np.uint8(value) if dtype is DType.BOOL else dtype.to_numpy().type(value)
        raise _failed(
            f"its plan has the argument {argument}, with {len(operands)} buffers and {len(scratch)} scratch",
        )

    def _check_sizes(self, function: KernelFunction, launch: OpenCLLaunch) -> None:
        sizes, local = launch.global_size, launch.local_size
        problem = None
        if not 1 <= len(sizes) <= self._max_dimensions or min(sizes) < 1:
            problem = f"has the global size {sizes}; give 1 to {self._max_dimensions} positive numbers"
        elif local is not None:
            group = math.prod(local)
            if len(local) != len(sizes) or min(local) < 1 or any(map(mod, sizes, local)):
                problem = f"has the global size {sizes}, which is no multiple of the local size {local}"
            elif group > function.max_group_size:
                allowed = function.max_group_size
                problem = f"has work-groups of {local}: {group} work-items; {self.name} allows {allowed}"
        local_nbytes = sum(a.nbytes for a in launch.arguments if isinstance(a, LocalArgument))
        if local_nbytes > self._local_nbytes:
            problem = f"asks for {local_nbytes} bytes of local memory; {self.name} has {self._local_nbytes}"
        if problem is not None:
            raise _failed(f"function {launch.entry!r} {problem}")

    def _scratch_buffers(self, sizes: Sequence[int]) -> list[Any]:
        kept = sorted(self._scratch, key=lambda buffer: int(buffer.size))
        chosen = []
        for nbytes in sizes:
            fitting = next((buffer for buffer in kept if buffer.size >= nbytes), None)
            if fitting is None:
                fitting = self.cl.Buffer(
                    self.queue.context, self.cl.mem_flags.READ_WRITE, size=max(nbytes, 1)
                )
            else:
                kept.remove(fitting)
            chosen.append(fitting)
        return chosen


class PreparedSource:
    """A kernel in OpenCL C, ready for one queue; its programs are built when a task needs their options."""

    def __init__(
        self, spec: KernelSpec, implementation: OpenCLSource, queue: OpenCLQueue, programs: Programs
    ) -> None:
        self._spec = spec
        self._implementation = implementation
        self._queue = queue
        self._programs = programs
        self._variants: OrderedDict[tuple[str, ...], tuple[Any, dict[str, KernelFunction]]] = OrderedDict()

    def run(self, operands: Sequence[Operand], scalars: Scalars) -> None:
        """Run the plan's launches; see `polymux.device.protocol.Prepared`."""
        plan = make_plan(self._spec, self._implementation.plan, operands, scalars)
        if plan.launches:
            self._queue.run(plan, self._functions(plan.options), operands)

    def _functions(self, options: tuple[str, ...]) -> dict[str, KernelFunction]:
        variant = self._variants.get(options)
        if variant is None:
            text = " ".join((self._implementation.options, *options)).strip()
            program = self._programs.build(self._implementation.source, text)
            with driver_errors(self._queue.cl, "its program has no usable functions"):
                # of this queue alone: a kernel object holds its arguments
                variant = (program, kernel_functions(self._queue.cl, program, self._queue.device))
            self._variants[options] = variant
            if len(self._variants) > _MAX_VARIANTS:
                self._variants.popitem(last=False)
        return variant[1]


class PreparedBinary:
    """A kernel in a program binary, ready for one queue; the binary is loaded when a task needs it."""

    def __init__(
        self, spec: KernelSpec, implementation: OpenCLBinary, queue: OpenCLQueue, programs: Programs
    ) -> None:
        self._spec = spec
        self._implementation = implementation
        self._queue = queue
        self._programs = programs

    def run(self, operands: Sequence[Operand], scalars: Scalars) -> None:
        """Load the binary unless it is there, and run; see `polymux.device.protocol.Prepared`."""
        plan = make_plan(self._spec, self._implementation.plan, operands, scalars)
        if plan.options:
            raise _failed(f"its plan has the build options {plan.options}; a program binary takes none")
        if plan.launches:
            with self._programs.loaded(self._implementation) as functions:
                self._queue.run(plan, functions, operands)


def make_plan(
    spec: KernelSpec, planner: OpenCLPlanner, operands: Sequence[Operand], scalars: Scalars
) -> OpenCLPlan:
    """Ask a kernel for the plan of a task.

    Raises
    ------
    LaunchError
        BAD_ARGUMENT when the planner refuses the task's buffers, KERNEL_FAILED when it fails otherwise.
    """
    try:
        return planner(spec, [operand.view for operand in operands], scalars)
    except InvalidRequest as error:
        raise LaunchError(TaskStatus.BAD_ARGUMENT, str(error)) from error
    except Exception as error:
        raise _failed(f"its plan raised {describe_exception(error)}") from error


def _failed(problem: str) -> LaunchError:
    return LaunchError(TaskStatus.KERNEL_FAILED, problem)
