"""The library of native kernels that comes with the package (built from ``cpp/kernels``)."""

from __future__ import annotations

from pathlib import Path

from polymux.core.implementation import NativeFunction

LIBRARY = Path(__file__).parents[2] / "lib" / "libpolymux_kernels.so"


def native(name: str, *, threads: bool = True) -> NativeFunction:
    """Native version of the built-in kernel `name`, for cpu devices."""
    return NativeFunction(str(LIBRARY), f"polymux_kernel_{name}", threads)
