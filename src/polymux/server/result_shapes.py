"""The shapes that a kernel says its outputs have: checked, and told to the client."""

from __future__ import annotations

from math import prod
from typing import Any

from polymux.core.dtype import DType
from polymux.core.status import TaskStatus
from polymux.core.task_view import MAX_RANK
from polymux.device.protocol import LaunchError
from polymux.server.arguments import Ref
from polymux.server.placement import WRITE
from polymux.server.session import Session
from polymux.server.started import Ready


def report_shapes(
    ready: Ready, session: Session, refs: list[Ref], shapes: list[tuple[int, ...]] | None
) -> None:
    """Tell the client, and tasks that read them later, what shapes a task's outputs have.

    Parameters
    ----------
    ready, session, refs
    shapes : list of tuple of int, or None
        None: as they are declared, whatever an earlier task left in these buffers.

    Raises
    ------
    LaunchError
        When they cannot be, or exceed their buffers.
    """
    if shapes is None:
        for ref in refs:
            if ref[2] == WRITE:  # what it read too keeps the shape in which it saw it
                session.segment.forget_shape(ref[0], ref[1])
        return
    outputs = refs[len(ready.kernel.spec.inputs) :]
    if len(shapes) != len(outputs):
        raise LaunchError(
            TaskStatus.KERNEL_FAILED, f"it returned {len(shapes)} shapes for {len(outputs)} outputs"
        )
    for shape, ref in zip(shapes, outputs, strict=True):
        _check_shape(shape, ref)
    for shape, ref in zip(shapes, outputs, strict=True):
        if shape != ref[4]:
            session.segment.set_shape(ref[0], ref[1], list(shape))
        elif ref[2] == WRITE:
            session.segment.forget_shape(ref[0], ref[1])


def _check_shape(shape: Any, ref: Ref) -> None:
    possible = (
        isinstance(shape, tuple)
        and len(shape) <= MAX_RANK
        and all(isinstance(extent, int) and 0 <= extent < 2**62 for extent in shape)
    )
    if not possible:
        raise LaunchError(TaskStatus.KERNEL_FAILED, f"it returned {shape!r:.100} as the shape of an output")
    nbytes = prod(shape) * DType(ref[3]).itemsize
    if nbytes > ref[6]:
        raise LaunchError(
            TaskStatus.OUTPUT_TOO_SMALL,
            f"an output has shape {shape} and needs {nbytes} bytes, its buffer has {ref[6]}; give a larger one",
        )
