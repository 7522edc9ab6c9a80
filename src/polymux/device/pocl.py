"""PoCL, the OpenCL implementation for CPUs: its surroundings, and the processors that an old one does not know.

The package ``pocl-binary-distribution`` carries PoCL 3.0 with LLVM 14. On a processor that is younger than its LLVM it
calls the processor "generic", a name that its own compiler refuses, so nothing can be built. `teach_cpu` gives it the
name of an older processor with the same instructions before the first build.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import shutil
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

from polymux.core.errors import DeviceUnavailable
from polymux.device.cores import allowed_cores

PLATFORM = "Portable Computing Language"

# By which instructions PoCL picks the file of built-in functions that it links into every program, most capable
# first; what a processor of LLVM 14 for that file has besides; and that processor. A name with fewer instructions
# than the file uses makes LLVM end the process, one with more makes it emit what the processor lacks.
_PROCESSORS = (
    ({"avx512f"}, {"avx512bw", "avx512cd", "avx512dq", "avx512vl"}, "skylake-avx512"),
    ({"avx2"}, {"fma", "bmi1", "bmi2", "f16c", "abm"}, "haswell"),
    ({"avx", "f16c"}, {"rdrand"}, "ivybridge"),
    ({"avx"}, {"sse4_2"}, "sandybridge"),
    ({"sse4_1"}, {"sse4_2", "popcnt"}, "nehalem"),
)
_SCANNED_NBYTES = 1024
_taught: dict[int, ctypes.Array[ctypes.c_char]] = {}


def set_environment() -> None:
    """Set what PoCL reads from the environment when it is loaded; what the user has set stays.

    Notes
    -----
    Its compiled kernels go to a folder of their own below the user's cache folder, one per processor name, since
    PoCL's own key does not tell them apart. Its threads are bound to cores, so that compute unit i is core i, where
    this process may use all cores; otherwise they are as many as the cores that it may use.
    """
    if "POCL_CACHE_DIR" not in os.environ:
        os.environ["POCL_CACHE_DIR"] = str(_cache_folder())
    cores = allowed_cores()
    if cores == tuple(range(os.cpu_count() or 1)):
        os.environ.setdefault("POCL_AFFINITY", "1")
    else:
        os.environ.setdefault("POCL_MAX_PTHREAD_COUNT", str(len(cores)))


def knows_cpu(device: Any) -> bool:
    """Whether this PoCL device has a name for the processor."""
    return not device.version.endswith("-generic")


def teach_cpu(device: Any) -> str:
    """Tell a PoCL device that calls its processor "generic" which instructions it has.

    Parameters
    ----------
    device : pyopencl.Device
        A root device that nothing was built for.

    Returns
    -------
    str
        The name that it was given.

    Raises
    ------
    DeviceUnavailable
        If this PoCL keeps the name elsewhere, or the processor has no counterpart.

    Notes
    -----
    Looks in the device's own structure for two neighbouring pointers, to the target triple and to "generic", and
    replaces the second.
    """
    taught = _taught.get(device.int_ptr)
    if taught is not None:
        return taught.value.decode()
    name = processor_name(cpu_flags())
    place = _find_name(device.int_ptr)
    if name is None or place is None:
        raise DeviceUnavailable(
            f"PoCL {device.driver_version} does not know this processor and cannot compile for it; install a newer"
            " PoCL, such as your distribution's pocl-opencl-icd"
        )
    text = ctypes.create_string_buffer(name.encode())
    ctypes.c_void_p.from_address(place).value = ctypes.addressof(text)
    _taught[device.int_ptr] = text  # PoCL reads it as long as the process lives
    return name


def processor_name(flags: Collection[str]) -> str | None:
    """LLVM's name of a processor with these instructions, as /proc/cpuinfo calls them; None if there is none."""
    present = frozenset(flags)
    for picked_by, needed, name in _PROCESSORS:
        if picked_by <= present:
            return name if needed <= present else None
    return None


def cpu_flags() -> frozenset[str]:
    """Instructions of this machine's processor, as /proc/cpuinfo calls them; none on other machines than x86-64."""
    try:
        with open("/proc/cpuinfo") as file:
            lines = [line.partition(":")[2] for line in file if line.startswith("flags")]
    except OSError:
        lines = []
    return frozenset(lines[0].split()) if lines else frozenset()


def _cache_folder() -> Path:
    name = processor_name(cpu_flags()) or "other"
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "polymux" / "pocl" / name
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    temporary = tempfile.mkdtemp(prefix="polymux-pocl-")
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    return Path(temporary)


def _find_name(address: int) -> int | None:
    """Where in a device's structure the pointer to the processor's name lies."""
    previous = b""
    for offset in range(0, _SCANNED_NBYTES, 8):
        word = _peek(address + offset, 8)
        if word is None:
            return None
        text = _text(int.from_bytes(word, sys.byteorder))
        if text == b"generic" and previous.startswith(b"x86_64"):
            return address + offset
        previous = text
    return None


def _text(address: int) -> bytes:
    """Text at an address that may be anything, up to its zero or 16 bytes; empty when nothing can be read there."""
    return (_peek(address, 16) or b"").partition(b"\0")[0]


class _Range(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("nbytes", ctypes.c_size_t))


def _peek(address: int, nbytes: int) -> bytes | None:
    """Read memory of this process that may not be mapped; None when it is not."""
    read = ctypes.CDLL(None, use_errno=True).process_vm_readv
    read.restype = ctypes.c_ssize_t
    buffer = ctypes.create_string_buffer(nbytes)
    local, remote = _Range(ctypes.addressof(buffer), nbytes), _Range(address, nbytes)
    count = read(os.getpid(), ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
    return buffer.raw if count == nbytes else None
