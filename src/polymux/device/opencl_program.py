"""OpenCL programs: built from source and shared while in use, or loaded from a binary, one at a time."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from polymux.core.implementation import OpenCLBinary
from polymux.core.status import TaskStatus
from polymux.device.opencl_error import driver_errors, driver_text
from polymux.device.protocol import LaunchError
from polymux.device.shared_cache import SharedCache, file_identity


class KernelFunction:
    """A kernel function of a built program, with what the driver says about it asked for once.

    Parameters
    ----------
    cl : module
        pyopencl.
    kernel : pyopencl.Kernel
        Holds its arguments, so it belongs to whoever launches it.
    device : pyopencl.Device
    """

    __slots__ = ("holds", "kernel", "max_group_size", "num_args", "types")

    def __init__(self, cl: Any, kernel: Any, device: Any) -> None:
        self.kernel = kernel
        self.holds: Any = None
        """Whose arguments it has."""
        self.types: tuple[Any, ...] | None = None
        """Those of its scalars, as pyopencl was told."""
        self.num_args = int(kernel.num_args)
        info = cl.kernel_work_group_info.WORK_GROUP_SIZE
        self.max_group_size = int(kernel.get_work_group_info(info, device))


def kernel_functions(cl: Any, program: Any, device: Any) -> dict[str, KernelFunction]:
    """Make new kernel objects of all functions of a program, by name.

    Notes
    -----
    One by one: the kernels of pyopencl's ``Program.all_kernels`` keep the program's memory for ever.
    """
    names = [name for name in program.kernel_names.split(";") if name]
    return {name: KernelFunction(cl, cl.Kernel(program, name), device) for name in names}


class Programs:
    """The programs of one device.

    Parameters
    ----------
    cl : module
        pyopencl.
    context : pyopencl.Context
    device : pyopencl.Device
    name : str
        The device's id, for errors.
    """

    def __init__(self, cl: Any, context: Any, device: Any, name: str) -> None:
        self._cl = cl
        self._context = context
        self._device = device
        self._name = name
        self._built: SharedCache[Any] = SharedCache()
        self._loaded: _LoadedBinary | None = None
        self._loading = threading.Lock()
        self.reconfigurations = 0
        """How often a program binary took the place of another one."""

    def build(self, source: str, options: str) -> Any:
        """Build a program, or return the one that is in use.

        Parameters
        ----------
        source, options : str

        Returns
        -------
        pyopencl.Program

        Raises
        ------
        LaunchError
            KERNEL_FAILED with the compiler's log.
        """
        return self._built.get((source, options), lambda: self._build(source, options))

    @contextmanager
    def loaded(self, binary: OpenCLBinary) -> Iterator[dict[str, KernelFunction]]:
        """Have a program binary on the device meanwhile, and the device's binary kernels to oneself.

        Yields
        ------
        dict of str to KernelFunction
            The binary's kernel functions by name.

        Raises
        ------
        LaunchError
            KERNEL_FAILED, if the file is missing, fits another device or lacks a function that it should have. The
            binary that was loaded before stays.
        """
        with self._loading:
            identity = file_identity(binary.path)
            if self._loaded is None or self._loaded.identity != identity:
                fresh = _LoadedBinary(identity, self._load(binary))
                self.reconfigurations += self._loaded is not None
                self._loaded = fresh
            missing = [entry for entry in binary.entries if entry not in self._loaded.kernels]
            if missing:
                raise LaunchError(
                    TaskStatus.KERNEL_FAILED,
                    f"program binary {binary.path} holds {', '.join(sorted(self._loaded.kernels)) or 'no kernels'},"
                    f" not {', '.join(missing)}",
                )
            yield self._loaded.kernels

    def clear(self) -> None:
        """Let go of the loaded binary."""
        self._loaded = None

    def _build(self, source: str, options: str) -> Any:
        with driver_errors(self._cl, f"its source does not compile for {self._name}"):
            program = self._cl.Program(self._context, source)
            return program.build(options, devices=[self._device])

    def _load(self, binary: OpenCLBinary) -> dict[str, KernelFunction]:
        try:
            with open(binary.path, "rb") as file:
                content = file.read()
        except OSError as error:
            raise LaunchError(
                TaskStatus.KERNEL_FAILED,
                f"program binary {binary.path} cannot be read: {error.strerror}; give its file",
            ) from error
        try:
            program = self._cl.Program(self._context, [self._device], [content]).build()
            return kernel_functions(self._cl, program, self._device)
        except self._cl.Error as error:
            raise LaunchError(
                TaskStatus.KERNEL_FAILED,
                f"program binary {os.path.basename(binary.path)} does not fit {self._name}"
                f" ({self._device.name}, driver {self._device.driver_version}): {driver_text(error)}; make it with"
                " this device and driver",
            ) from error


class _LoadedBinary:
    def __init__(self, identity: tuple[Any, ...], kernels: dict[str, KernelFunction]) -> None:
        self.identity = identity
        self.kernels = kernels
