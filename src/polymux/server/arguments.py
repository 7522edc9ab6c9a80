"""Checks a task's buffers and scalars against what its kernel takes, before any of them is used."""

from __future__ import annotations

from collections.abc import Sequence

from polymux.core.dtype import DType
from polymux.core.kernel_spec import BufferParam, KernelSpec
from polymux.core.status import TaskStatus
from polymux.core.task_view import Access
from polymux.device.protocol import LaunchError

Ref = tuple[int, int, int, int, tuple[int, ...], int, int, int]
"""Slot, generation, access, dtype, shape, offset, nbytes, location: one of `TaskRecord.refs`."""


def check_buffers(spec: KernelSpec, refs: Sequence[Ref]) -> None:
    """Check number, element types, shapes and accesses.

    Raises
    ------
    LaunchError
        BAD_ARGUMENT: names the argument, its value and what would be right.
    """
    if spec.variadic:
        return
    expected = len(spec.inputs) + len(spec.outputs)
    if len(refs) != expected:
        raise LaunchError(
            TaskStatus.BAD_ARGUMENT,
            f"it takes {expected} buffers ({_names(spec.inputs)} -> {_names(spec.outputs)}), the task has"
            f" {len(refs)}",
        )
    for ref, param in zip(refs, spec.inputs, strict=False):
        _check_buffer("input", param, ref, Access.READ)
    for ref, param in zip(refs[len(spec.inputs) :], spec.outputs, strict=True):
        _check_buffer("output", param, ref, Access.WRITE)


def check_scalars(spec: KernelSpec, args: bytes) -> dict[str, float | int | bool]:
    """Read the scalars.

    Raises
    ------
    LaunchError
        BAD_ARGUMENT, with the signature.
    """
    try:
        return spec.unpack(args)
    except ValueError as error:
        raise LaunchError(TaskStatus.BAD_ARGUMENT, str(error)) from None


def _check_buffer(kind: str, param: BufferParam, ref: Ref, needed: Access) -> None:
    _, _, access, dtype, shape, *_ = ref
    if param.dtypes and dtype not in param.dtypes:
        accepted = ", ".join(known.name_short for known in param.dtypes)
        raise LaunchError(
            TaskStatus.BAD_ARGUMENT,
            f"{kind} {param.name!r} has dtype {DType(dtype).name_short}; it takes {accepted}",
        )
    if param.shape is not None and not _matches(shape, param.shape):
        wanted = "(" + ", ".join("any" if extent is None else str(extent) for extent in param.shape) + ")"
        raise LaunchError(
            TaskStatus.BAD_ARGUMENT, f"{kind} {param.name!r} has shape {shape}; it takes {wanted}"
        )
    if not access & needed:
        raise LaunchError(
            TaskStatus.BAD_ARGUMENT,
            f"{kind} {param.name!r} is given for {Access(access).name}; an {kind} needs {needed.name}",
        )


def _matches(shape: tuple[int, ...], wanted: tuple[int | None, ...]) -> bool:
    return len(shape) == len(wanted) and all(
        known is None or extent == known for extent, known in zip(shape, wanted, strict=True)
    )


def _names(params: Sequence[BufferParam]) -> str:
    return ", ".join(param.name for param in params) or "none"
