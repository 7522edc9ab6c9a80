"""The dispatch table, the built-in kernels, and how further kernels get in: decorator, files, entry points."""

from __future__ import annotations

from polymux.core.implementation import (
    NativeFunction,
    OnnxModel,
    OpenCLBinary,
    OpenCLSource,
    PythonFunction,
)
from polymux.core.kernel_spec import BufferParam, KernelSpec, ScalarParam
from polymux.core.opencl_range import OpenCLRange
from polymux.kernel.decorator import kernel
from polymux.kernel.definition import Definition
from polymux.kernel.table import DispatchTable
from polymux.kernel.team import Team

__all__ = [
    "BufferParam",
    "Definition",
    "DispatchTable",
    "KernelSpec",
    "NativeFunction",
    "OnnxModel",
    "OpenCLBinary",
    "OpenCLRange",
    "OpenCLSource",
    "PythonFunction",
    "ScalarParam",
    "Team",
    "kernel",
]
