"""Runs kernels on a device as the server would, without a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polymux.core.device_spec import Share
from polymux.core.dtype import DType
from polymux.core.task_view import Access, BufferView
from polymux.device.cores import allowed_cores
from polymux.device.protocol import Device, Operand
from polymux.kernel.builtin import definitions
from polymux.kernel.definition import Definition

BUILT_IN = {definition.spec.name: definition for definition in definitions()}
REQUESTS = ("cpu", f"cpu:{allowed_cores()[0]}", "opencl")
"""All cores on host memory, one core with memory of its own, and the first OpenCL device."""


class KernelDevice:
    """One stream on a whole device; NumPy arrays stand for buffers, the same array twice for the same buffer."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.stream = device.open_stream(Share())

    def run(
        self,
        kernel: str | Definition,
        inputs: Sequence[NDArray[Any]],
        outputs: Sequence[NDArray[Any]],
        **scalars: Any,
    ) -> None:
        """Run one task; the outputs are written in place."""
        definition = BUILT_IN[kernel] if isinstance(kernel, str) else kernel
        spec = definition.spec
        implementation = next(i for i in definition.implementations if i.api in self.device.spec.apis)
        values = spec.unpack(spec.pack(scalars))
        buffers: dict[int, _Buffer] = {}
        operands = []
        try:
            for index, array in enumerate([*inputs, *outputs]):
                if id(array) not in buffers:
                    buffers[id(array)] = _Buffer(len(buffers), array, self)
                access = Access.READ if index < len(inputs) else Access.WRITE
                operands.append(buffers[id(array)].operand(access))
            self.stream.launch(self.stream.prepare(spec, implementation), operands, values)
            for array in outputs:
                buffers[id(array)].bring_home()
        finally:
            for buffer in buffers.values():
                buffer.free()


class _Buffer:
    def __init__(self, slot: int, array: NDArray[Any], home: KernelDevice) -> None:
        assert array.flags.c_contiguous
        self.slot, self.array, self.home = slot, array, home
        self.memory = None
        if home.device.spec.memory == "own":
            self.memory = home.device.allocate(array.nbytes)
            home.stream.copy_in(self.memory, self._bytes())

    def operand(self, access: Access) -> Operand:
        dtype = DType.from_numpy(self.array.dtype)
        view = BufferView(self.slot, dtype, self.array.shape, self.array.nbytes, access, 0)
        return Operand(view, array=self.array if self.memory is None else None, memory=self.memory)

    def bring_home(self) -> None:
        if self.memory is not None:
            self.home.stream.copy_out(self.memory, self._bytes())

    def free(self) -> None:
        if self.memory is not None:
            self.home.device.free(self.memory)

    def _bytes(self) -> NDArray[np.uint8]:
        return self.array.reshape(-1).view(np.uint8)
