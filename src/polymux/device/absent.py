"""Kinds of device that are not used unless asked for, or not driven, and what is missing for each."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Sequence

from polymux.core.device_spec import AbsentDevice

_KINDS = (
    ("cuda", "NVIDIA", ("libcuda.so.1",), "cupy"),
    ("rocm", "AMD", ("libamdhip64.so", "libamdhip64.so.6", "libamdhip64.so.7"), "hip"),
)


def absent_kinds() -> list[AbsentDevice]:
    """Say why there is no cuda and no rocm device, where none was asked for."""
    return [
        AbsentDevice(api, reason(vendor, libraries, package, is_driven=api == "cuda"))
        for api, vendor, libraries, package in _KINDS
    ]


def reason(vendor: str, libraries: Sequence[str], package: str, is_driven: bool = False) -> str:
    """Say in a sentence what is missing.

    Parameters
    ----------
    vendor : str
        Whose accelerators.
    libraries : sequence of str
        Names of the driver library, any of which will do.
    package : str
        The Python package that calls it.
    is_driven : bool
        Whether this version has such devices; they are used when they are asked for.
    """
    if not any(map(_loads, libraries)):
        return f"no {vendor} driver is installed: {libraries[0]} cannot be loaded"
    through_opencl = f"use the accelerator through {vendor}'s OpenCL driver (--device opencl)"
    through_opencl += " or, for models, through onnxruntime (--device onnxruntime)"
    if importlib.util.find_spec(package) is None:
        return f"{libraries[0]} is there, but the Python package {package} is not installed; {through_opencl}"
    if is_driven:
        return f"{libraries[0]} and {package} are there; it is used when it is asked for: --device cuda"
    return f"{libraries[0]} and {package} are there, but this version has no such device; {through_opencl}"


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
