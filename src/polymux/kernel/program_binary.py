"""Making an OpenCL program binary: several kernels compiled for one device, as an FPGA tool chain delivers them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from polymux.core.errors import InvalidRequest


def write_program_binary(
    file: str | Path, handle: Any, sources: Iterable[str], *, options: str = ""
) -> tuple[str, ...]:
    """Compile OpenCL C sources into one program binary.

    Parameters
    ----------
    file : str or Path
        Written when everything has succeeded.
    handle : pyopencl.Device
        The device that will load it, with the driver that it has now.
    sources : iterable of str
        Programs; they are put one after the other, so their functions and macros need different names.
    options : str
        Options of the OpenCL compiler.

    Returns
    -------
    tuple of str
        The binary's kernel functions, sorted: `OpenCLBinary.entries`.

    Raises
    ------
    InvalidRequest
        If the sources do not compile, or hold no kernel; the message has the compiler's log.
    """
    import pyopencl as cl  # only here: programs without OpenCL devices do without it

    try:
        program = cl.Program(cl.Context([handle]), "\n".join(sources)).build(options, devices=[handle])
    except cl.Error as error:
        raise InvalidRequest(f"the sources do not compile for {handle.name.strip()}: {error}") from error
    entries = tuple(sorted(kernel.function_name for kernel in program.all_kernels()))
    if not entries:
        raise InvalidRequest("the sources hold no __kernel function")
    (binary,) = program.get_info(cl.program_info.BINARIES)
    target = Path(file)
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    partial.write_bytes(binary)
    partial.replace(target)
    return entries
