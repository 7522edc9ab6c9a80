"""OpenCL kernels made ready for one command queue: a task's plan, made once and carried out often."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from polymux.core.errors import InvalidRequest
from polymux.core.implementation import OpenCLBinary, OpenCLSource
from polymux.core.kernel_spec import KernelSpec
from polymux.core.opencl_plan import OpenCLPlan, OpenCLPlanner
from polymux.core.opencl_range import OpenCLRange
from polymux.core.status import TaskStatus
from polymux.device.cpu_kernels import describe_exception
from polymux.device.opencl_error import driver_errors
from polymux.device.opencl_program import KernelFunction, Programs, kernel_functions
from polymux.device.opencl_queue import Command, Ended, OpenCLQueue, failed
from polymux.device.protocol import Launch, LaunchError, Operand, Scalars

_MAX_VARIANTS = 32
_MAX_PLANS = 256
_MAX_READY = 16

_NOTHING = Ended()
_Commands = tuple[Sequence[Operand], Scalars, list[Command]]


class PreparedSource:
    """A kernel in OpenCL C, ready for one queue; its programs are built when a task needs their options.

    Notes
    -----
    Plans are kept by what their buffers look like, and commands by the `operands` object that they are for: the server
    gives the same one again for a task with the same buffers and scalars.
    """

    def __init__(
        self, spec: KernelSpec, implementation: OpenCLSource, queue: OpenCLQueue, programs: Programs
    ) -> None:
        self._spec = spec
        self._implementation = implementation
        self._queue = queue
        self._programs = programs
        self._variants: OrderedDict[tuple[str, ...], tuple[Any, dict[str, KernelFunction]]] = OrderedDict()
        self._plans: OrderedDict[object, OpenCLPlan] = OrderedDict()
        self._ready: OrderedDict[int, _Commands] = OrderedDict()

    def start(self, operands: Sequence[Operand], scalars: Scalars) -> Launch:
        """Enqueue the plan's launches; see `polymux.device.protocol.LaunchingStream`."""
        ready = self._ready.get(id(operands))
        commands = (
            ready[2] if ready is not None and ready[1] is scalars else self._commands(operands, scalars)
        )
        return self._queue.start(commands) if commands else _NOTHING

    def run(self, operands: Sequence[Operand], scalars: Scalars) -> None:
        """Run the plan's launches; see `polymux.device.protocol.Prepared`."""
        self.start(operands, scalars).wait()

    def build(self) -> None:
        """Build the program, if its options do not depend on the task."""
        if isinstance(self._implementation.plan, OpenCLRange):
            self._functions(())

    def _commands(self, operands: Sequence[Operand], scalars: Scalars) -> list[Command]:
        plan = self._plan(operands, scalars)
        if not plan.launches:
            return []
        commands = self._queue.commands(plan, self._functions(plan.options), operands)
        if all(command.lasting for command in commands):
            self._ready[id(operands)] = (
                operands,
                scalars,
                commands,
            )  # holds `operands`, so its id stays its own
            if len(self._ready) > _MAX_READY:
                self._ready.popitem(last=False)
        return commands

    def _plan(self, operands: Sequence[Operand], scalars: Scalars) -> OpenCLPlan:
        slots = [operand.view.slot for operand in operands]
        key = (
            *[(*_looks(operand), slots.index(operand.view.slot)) for operand in operands],
            repr(scalars),  # which tells -0.0 from 0.0
        )
        plan = self._plans.get(key)
        if plan is None:
            plan = make_plan(self._spec, self._implementation.plan, operands, scalars)
            self._plans[key] = plan
            if len(self._plans) > _MAX_PLANS:
                self._plans.popitem(last=False)
        return plan

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

    def start(self, operands: Sequence[Operand], scalars: Scalars) -> Launch:
        """Run to the end: no other binary may take this one's place meanwhile."""
        self.run(operands, scalars)
        return _NOTHING

    def run(self, operands: Sequence[Operand], scalars: Scalars) -> None:
        """Load the binary unless it is there, and run; see `polymux.device.protocol.Prepared`."""
        plan = make_plan(self._spec, self._implementation.plan, operands, scalars)
        if plan.options:
            raise failed(f"its plan has the build options {plan.options}; a program binary takes none")
        if plan.launches:
            with self._programs.loaded(self._implementation) as functions:
                self._queue.start(self._queue.commands(plan, functions, operands)).wait()


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
        raise failed(f"its plan raised {describe_exception(error)}") from error


def _looks(operand: Operand) -> tuple[int, tuple[int, ...], int]:
    """What a plan may depend on, as plain numbers, which are quick to compare."""
    view = operand.view
    return int(view.dtype), view.shape, int(view.access)
