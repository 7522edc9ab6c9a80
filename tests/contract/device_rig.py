"""What the device contract tests have in common: every device of this machine, and buffers on any of them."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polymux.core.device_spec import Share
from polymux.core.dtype import DType
from polymux.core.errors import DeviceUnavailable
from polymux.core.implementation import CudaFunction, Implementation, OpenCLSource, PythonFunction
from polymux.core.kernel_spec import BufferParam, KernelSpec, ScalarParam
from polymux.core.opencl_range import OpenCLRange
from polymux.core.task_view import Access, BufferView
from polymux.device.cores import allowed_cores
from polymux.device.protocol import Device, Memory, Operand, Shapes, Stream
from polymux.device.registry import discover, known_apis
from polymux.segment import call_native

_SIMULATED = """
name = "A quick simulated device"
memory_nbytes = "64MiB"
units = 4
streams = 2
[transfer]
bandwidth_bytes_per_s = 100e9
latency_ns = 1000
[compute]
latency_ns = 1000
"""

SAXPY = KernelSpec(
    "test_saxpy",
    (BufferParam("x"), BufferParam("y")),
    (BufferParam("z"),),
    (ScalarParam("a", DType.F32),),
)
NOOP = KernelSpec("test_noop", variadic=True)


def requests() -> list[str]:
    """Device strings of everything that this machine has, each API once and the cpu in all of its forms."""
    cores = allowed_cores()
    found = ["cpu", f"cpu:{cores[0]}", "simulated"]
    if len(cores) > 1:
        found.append(f"cpu:{cores[0]},{cores[-1]},streams=2")
    found.append("opencl,memory=host")
    return found + [api for api in known_apis() if api not in ("cpu", "simulated")]


def open_all(request: str) -> list[Device]:
    """Open the devices of a request; none where its API is absent."""
    if request == "simulated":
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
            file.write(_SIMULATED)
            file.flush()
            return discover([f"simulated={file.name}"], native_caller=call_native)[0]
    try:
        return discover([request], native_caller=call_native)[0]
    except DeviceUnavailable:
        return []


def saxpy(api: str) -> Implementation:
    """Return ``z = a x + y`` for a device API."""
    if api == "opencl":
        source = """
        __kernel void saxpy(__global const float *x, __global const float *y, __global float *z, float a, long n) {
            long i = get_global_id(0);
            if (i < n) z[i] = a * x[i] + y[i];
        }"""
        return OpenCLSource(source, OpenCLRange("saxpy", ("x.size",), (64,), ("a", "x.size")))
    return CudaFunction(_saxpy) if api == "cuda" else PythonFunction(_saxpy)


def noop(api: str) -> Implementation:
    """Return a kernel that does nothing, for a device API."""
    if api == "opencl":
        return OpenCLSource(
            "__kernel void noop(int n) {}", lambda *_: OpenCLRange("noop", (0,))(NOOP, (), {})
        )
    return CudaFunction(lambda *_: None) if api == "cuda" else PythonFunction(lambda *_: None)


def failing(api: str) -> Implementation:
    """Return a kernel that fails when it runs, for a device API."""
    if api == "opencl":
        return OpenCLSource(
            "__kernel void f(int n) { undeclared(n); }", OpenCLRange("f", (1,), arguments=(1,))
        )
    return CudaFunction(_fail) if api == "cuda" else PythonFunction(_fail)


def _saxpy(x: NDArray[Any], y: NDArray[Any], z: NDArray[Any], a: float) -> None:
    z[...] = np.float32(a) * x + y


def _fail(*arrays: NDArray[Any], **scalars: Any) -> None:
    raise RuntimeError("this kernel always fails")


@dataclass(eq=False)
class Rig:
    """A device, a stream of it, and the buffers that were put there."""

    device: Device
    share: Share = field(default_factory=Share)

    def __post_init__(self) -> None:
        self.stream: Stream = self.device.open_stream(self.share)
        self.placed: list[Memory] = []

    @property
    def api(self) -> str:
        return self.device.spec.apis[0]

    def put(self, array: NDArray[Any], access: Access = Access.READ) -> Operand:
        """Make an operand of an array: the array itself, or a copy in the device's memory."""
        dtype = DType.from_numpy(array.dtype)
        view = BufferView(len(self.placed), dtype, array.shape, array.nbytes, access, 0)
        if self.device.spec.memory == "host":
            self.placed.append(None)
            return Operand(view, array)
        memory = self.device.allocate(array.nbytes)
        self.placed.append(memory)
        self.stream.copy_in(memory, array.reshape(-1).view(np.uint8))
        return Operand(view, memory=memory)

    def get(self, operand: Operand) -> NDArray[Any]:
        """Read an operand's elements."""
        if operand.array is not None:
            return operand.array
        array = np.empty(operand.view.shape, operand.view.dtype.to_numpy())
        self.stream.copy_out(operand.memory, array.reshape(-1).view(np.uint8))
        return array

    def run(
        self, spec: KernelSpec, implementation: Implementation, operands: Sequence[Operand], **scalars: float
    ) -> Shapes | None:
        """Prepare and launch."""
        return self.stream.launch(self.stream.prepare(spec, implementation), operands, scalars)

    def check_saxpy(self, n: int, a: float = 2.5) -> None:
        """Run saxpy on `n` elements and compare."""
        x, y = np.arange(n, dtype=np.float32), np.full(n, 3, np.float32)
        operands = [self.put(x), self.put(y), self.put(np.zeros(n, np.float32), Access.WRITE)]
        self.run(SAXPY, saxpy(self.api), operands, a=a)
        np.testing.assert_array_equal(self.get(operands[2]), np.float32(a) * x + y)

    def free(self) -> None:
        """Give every buffer back."""
        for memory in self.placed:
            if memory is not None:
                self.device.free(memory)
        self.placed.clear()
