from __future__ import annotations

from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import pytest

from polymux.core.status import TaskStatus
from polymux.device.opencl_error import driver_errors, driver_text
from polymux.device.protocol import LaunchError


class Code(IntEnum):
    MEM_OBJECT_ALLOCATION_FAILURE = -4
    OUT_OF_RESOURCES = -5
    OUT_OF_HOST_MEMORY = -6
    BUILD_PROGRAM_FAILURE = -11
    INVALID_KERNEL_ARGS = -52
    INVALID_WORK_GROUP_SIZE = -54
    INVALID_COMMAND_QUEUE = -36


class DriverError(Exception):
    def __init__(self, code: int) -> None:
        super().__init__("clSomething failed")
        self.code = code


def to_string(code: int, default: str) -> str:
    return Code(code).name if code in set(Code) else default % code


CL: Any = SimpleNamespace(Error=DriverError, status_code=SimpleNamespace(to_string=to_string))


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (Code.MEM_OBJECT_ALLOCATION_FAILURE, TaskStatus.OUT_OF_MEMORY),
        (Code.OUT_OF_HOST_MEMORY, TaskStatus.OUT_OF_MEMORY),
        (Code.OUT_OF_RESOURCES, TaskStatus.DEVICE_FAILED),
        (Code.BUILD_PROGRAM_FAILURE, TaskStatus.KERNEL_FAILED),
        (Code.INVALID_KERNEL_ARGS, TaskStatus.KERNEL_FAILED),
        (Code.INVALID_WORK_GROUP_SIZE, TaskStatus.KERNEL_FAILED),
        (Code.INVALID_COMMAND_QUEUE, TaskStatus.DEVICE_FAILED),
        (-9999, TaskStatus.DEVICE_FAILED),
    ],
)
def test_the_drivers_code_decides_the_status_and_its_text_is_kept(code: int, status: TaskStatus) -> None:
    with (
        pytest.raises(LaunchError, match="opencl:0 writes: clSomething failed") as failure,
        driver_errors(CL, "opencl:0 writes"),
    ):
        raise DriverError(code)
    assert failure.value.code is status


def test_other_errors_pass() -> None:
    with pytest.raises(KeyError), driver_errors(CL, "doing"):
        raise KeyError


def test_of_a_failed_build_only_the_compilers_log_is_shown() -> None:
    text = (
        "clBuildProgram failed: BUILD_PROGRAM_FAILURE - clBuildProgram failed\n\n"
        "Build on <pyopencl.Device 'x' on 'y' at 0x1>:\n\nerror: /x/tempfile_A1.cl:2:3: oops\n\n(options: -I /usr/lib)"
    )
    assert driver_text(Exception(text)) == "error: source:2:3: oops"


def test_a_long_text_is_cut() -> None:
    assert len(driver_text(Exception("x" * 10_000))) < 2100
