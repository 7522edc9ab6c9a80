"""Shared libraries with native kernels: loaded once, refused unless they were built for this ABI."""

from __future__ import annotations

import ctypes
import os
import threading

from polymux.core.implementation import NativeFunction
from polymux.core.status import TaskStatus
from polymux.device.protocol import LaunchError

KERNEL_ABI = 1
"""``POLYMUX_KERNEL_ABI`` of ``include/polymux.h``."""

_ABI_SYMBOL = "polymux_kernel_library_abi"
_libraries: dict[str, ctypes.CDLL] = {}
_lock = threading.Lock()


def resolve(function: NativeFunction) -> int:
    """Address of a native kernel; its library is loaded when this is the first use.

    Returns
    -------
    int
        Address of a function of type ``polymux_kernel_fn``; valid while the process lives.

    Raises
    ------
    LaunchError
        KERNEL_FAILED, if the library is missing, cannot be loaded, was built for another ABI, or has no such symbol.

    Notes
    -----
    Loading runs the library's initializers with the rights of this process.
    """
    library = load(function.library)
    try:
        symbol = getattr(library, function.symbol)
    except AttributeError:
        raise LaunchError(
            TaskStatus.KERNEL_FAILED,
            f'{function.library} has no symbol {function.symbol!r}; declare the function extern "C" and export it',
        ) from None
    address = ctypes.cast(symbol, ctypes.c_void_p).value
    assert address is not None
    return address


def load(path: str) -> ctypes.CDLL:
    """Load a kernel library and check its ABI; a library that is loaded already is returned again.

    Raises
    ------
    LaunchError
        As `resolve`.
    """
    real = os.path.realpath(path)
    with _lock:
        library = _libraries.get(real)
        if library is None:
            library = _load(path, real)
            _libraries[real] = library
    return library


def _load(path: str, real: str) -> ctypes.CDLL:
    if not os.path.isfile(real):
        raise LaunchError(TaskStatus.KERNEL_FAILED, f"kernel library {path} does not exist; give its path")
    try:
        library = ctypes.CDLL(real, mode=ctypes.RTLD_LOCAL)
    except OSError as error:
        raise LaunchError(
            TaskStatus.KERNEL_FAILED, f"kernel library {path} cannot be loaded: {error}"
        ) from error
    try:
        abi_of = getattr(library, _ABI_SYMBOL)
    except AttributeError:
        raise LaunchError(
            TaskStatus.KERNEL_FAILED,
            f"{path} is no kernel library: it does not export {_ABI_SYMBOL}(); see include/polymux.h",
        ) from None
    abi_of.restype, abi_of.argtypes = ctypes.c_uint32, ()
    abi = abi_of()
    if abi != KERNEL_ABI:
        raise LaunchError(
            TaskStatus.KERNEL_FAILED,
            f"kernel library {path} was built for kernel ABI {abi}, this Polymux has {KERNEL_ABI}; rebuild it with"
            " its include/polymux.h",
        )
    return library
