"""A command queue of an OpenCL device: checks what a plan wants enqueued, enqueues it, and waits for it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import mod
from typing import Any

import numpy as np

from polymux.core.dtype import DType
from polymux.core.opencl_plan import (
    BufferArgument,
    LocalArgument,
    OpenCLArgument,
    OpenCLLaunch,
    OpenCLPlan,
    ScalarArgument,
    ScratchArgument,
)
from polymux.core.status import TaskStatus
from polymux.device.opencl_buffer import new_buffer
from polymux.device.opencl_error import driver_errors, launch_error
from polymux.device.opencl_program import KernelFunction
from polymux.device.protocol import Launch, LaunchError, Operand

_FAILED = "its launch failed"


@dataclass(slots=True, eq=False)
class Command:
    """One call of a kernel function, ready to be enqueued as often as wanted.

    Parameters
    ----------
    function : KernelFunction
    arguments : tuple
        As pyopencl takes them. The driver does not keep the buffers among them alive.
    types : tuple of (dtype or None)
        Of the scalars among them. A scalar whose type pyopencl has to find out costs 12 us.
    global_size : tuple of int, work-items
    local_size : tuple of int or None, work-items
    lasting : bool
        Whether the kernel object may hold the arguments until it gets others.
    """

    function: KernelFunction
    arguments: tuple[Any, ...]
    types: tuple[np.dtype[Any] | None, ...]
    global_size: tuple[int, ...]
    local_size: tuple[int, ...] | None
    lasting: bool


class OpenCLQueue:
    """A command queue with what launches on it need.

    Parameters
    ----------
    cl : module
        pyopencl.
    queue : pyopencl.CommandQueue
        In order.
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
        self._most_scratch = 0

    def commands(
        self, plan: OpenCLPlan, functions: Mapping[str, KernelFunction], operands: Sequence[Operand]
    ) -> list[Command]:
        """Make the commands of a plan.

        Raises
        ------
        LaunchError
            If the plan does not fit its kernels or the device, or there is no memory for its scratch.

        Notes
        -----
        Scratch memory is shared by all plans of the queue, whose commands run one after the other, and stays until
        `trim`. Commands that have some, or that use the host's memory, are to be enqueued at once, and kept no longer.
        """
        with driver_errors(self.cl, _FAILED):
            scratch = self._scratch_buffers(plan.scratch_nbytes) if plan.scratch_nbytes else []
        return [self._command(launch, functions, operands, scratch) for launch in plan.launches]

    def start(self, commands: Sequence[Command]) -> Launch:
        """Enqueue commands.

        Raises
        ------
        LaunchError
            If the driver refuses; those that were enqueued before the refused one have ended.
        """
        cl, queue = self.cl, self.queue
        event = None
        try:
            for command in commands:
                function = command.function
                if function.holds is not command:
                    function.holds = None
                    if function.types != command.types:
                        function.types = None
                        function.kernel.set_arg_types(command.types)
                        function.types = command.types
                    function.kernel.set_args(*command.arguments)
                    function.holds = command if command.lasting else None
                event = cl.enqueue_nd_range_kernel(
                    queue, function.kernel, command.global_size, command.local_size
                )
            queue.flush()
        except cl.Error as error:
            if event is not None:
                self._wait_out()
            raise launch_error(cl, _FAILED, error) from error
        return OpenCLLaunched(cl, event)

    def trim(self) -> None:
        """Give scratch memory back."""
        self._scratch = []
        self._most_scratch = 0

    def _wait_out(self) -> None:
        try:
            self.queue.finish()
        except self.cl.Error:  # the error that is being told of came first
            return

    def _command(
        self,
        launch: OpenCLLaunch,
        functions: Mapping[str, KernelFunction],
        operands: Sequence[Operand],
        scratch: Sequence[Any],
    ) -> Command:
        function = functions.get(launch.entry)
        if function is None:
            has = ", ".join(sorted(functions))
            raise failed(f"its program has no function {launch.entry!r}; it has {has}")
        if len(launch.arguments) != function.num_args:
            has_args = len(launch.arguments)
            raise failed(
                f"function {launch.entry!r} takes {function.num_args} arguments, its plan has {has_args}"
            )
        self._check_sizes(function, launch)
        arguments = tuple([self._argument(argument, operands, scratch) for argument in launch.arguments])
        types = tuple([value.dtype if isinstance(value, np.generic) else None for value in arguments])
        lasting = not scratch and not any(operand.memory is None for operand in operands)
        return Command(function, arguments, types, launch.global_size, launch.local_size, lasting=lasting)

    def _on_host(self, operand: Operand) -> Any:
        """Let the driver use the host's own memory, which it does without a copy where the cores are the device."""
        array, flags = operand.array, self.cl.mem_flags
        assert array is not None, "an operand lies somewhere"
        if array.nbytes == 0:
            return self.cl.Buffer(self.queue.context, flags.READ_WRITE, size=1)
        access = flags.READ_WRITE if array.flags.writeable else flags.READ_ONLY
        with driver_errors(self.cl, f"{self.name} cannot use the memory of the host"):
            return self.cl.Buffer(self.queue.context, access | flags.USE_HOST_PTR, hostbuf=array)

    def _argument(self, argument: OpenCLArgument, operands: Sequence[Operand], scratch: Sequence[Any]) -> Any:
        match argument:
            case BufferArgument(index) if 0 <= index < len(operands):
                operand = operands[index]
                return self._on_host(operand) if operand.memory is None else operand.memory
            case ScratchArgument(index) if 0 <= index < len(scratch):
                return scratch[index]
            case LocalArgument(nbytes):
                return self.cl.LocalMemory(nbytes)
            case ScalarArgument(dtype, value) if dtype is not DType.BF16:
                return np.uint8(value) if dtype is DType.BOOL else dtype.to_numpy().type(value)
        raise failed(
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
            raise failed(f"function {launch.entry!r} {problem}")

    def _scratch_buffers(self, sizes: Sequence[int]) -> list[Any]:
        """Choose or make a buffer of at least each size; the driver keeps one that is dropped until its use ends.

        As many are kept as a plan has had at most, the largest ones: plans that differ do not make them anew by turns.
        """
        self._most_scratch = max(self._most_scratch, len(sizes))
        kept = sorted(self._scratch, key=lambda buffer: int(buffer.size))
        chosen = []
        for nbytes in sizes:
            fitting = next((buffer for buffer in kept if buffer.size >= nbytes), None)
            if fitting is None:
                fitting = new_buffer(self.cl, self.queue, nbytes)
            else:
                kept.remove(fitting)
            chosen.append(fitting)
        by_size = sorted(chosen + kept, key=lambda buffer: int(buffer.size), reverse=True)
        self._scratch = by_size[: self._most_scratch]
        return chosen


class OpenCLLaunched:
    """Commands that were enqueued; see `polymux.device.protocol.Launch`."""

    __slots__ = ("_cl", "_event")

    def __init__(self, cl: Any, event: Any) -> None:
        self._cl = cl
        self._event = event

    def ended(self) -> bool:
        """Ask the driver whether the last command has ended, well or not."""
        try:
            return bool(self._event.command_execution_status <= 0)
        except self._cl.Error:
            return True  # `wait` says why

    def wait(self) -> None:
        """Wait for the last command."""
        try:
            self._event.wait()
        except self._cl.Error as error:
            raise launch_error(self._cl, "it failed while it ran", error) from error


class Ended:
    """A launch with nothing to wait for; see `polymux.device.protocol.Launch`."""

    def ended(self) -> bool:
        """Nothing is under way."""
        return True

    def wait(self) -> None:
        """Return at once."""


def failed(problem: str) -> LaunchError:
    """Make the error of a kernel whose plan cannot be carried out."""
    return LaunchError(TaskStatus.KERNEL_FAILED, problem)
