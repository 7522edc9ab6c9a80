"""Calls native kernels through the C ABI, also with descriptions of buffers that a server would never pass on."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polymux.core.dtype import DType
from polymux.kernel.builtin.native import LIBRARY

ABI = 1


class CBuffer(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("nbytes", ctypes.c_uint64),
        ("dtype", ctypes.c_int32),
        ("access", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("shape", ctypes.c_int64 * 8),
    )


class CCall(ctypes.Structure):
    _fields_ = (
        ("abi", ctypes.c_uint32),
        ("n_buffers", ctypes.c_uint32),
        ("buffers", ctypes.POINTER(CBuffer)),
        ("args", ctypes.c_void_p),
        ("args_nbytes", ctypes.c_uint32),
        ("threads", ctypes.c_uint32),
        ("message", ctypes.c_char_p),
        ("message_nbytes", ctypes.c_uint32),
    )


@dataclass
class Given:
    """A buffer as a kernel is told of it; what is None is the array's own."""

    address: int
    nbytes: int
    dtype: int
    shape: tuple[int, ...]
    ndim: int | None = None


def library() -> ctypes.CDLL:
    return ctypes.CDLL(str(LIBRARY))


def given(array: np.ndarray) -> Given:
    return Given(array.ctypes.data, array.nbytes, int(DType.from_numpy(array.dtype)), array.shape)


def call(
    name: str,
    buffers: Sequence[Given | np.ndarray],
    args: bytes = b"",
    *,
    threads: int = 1,
    abi: int = ABI,
    message_nbytes: int = 512,
) -> tuple[int, str]:
    """Call ``polymux_kernel_<name>``; its return code and message."""
    function: Any = getattr(library(), f"polymux_kernel_{name}")
    function.argtypes, function.restype = (ctypes.POINTER(CCall),), ctypes.c_int
    described = (CBuffer * max(len(buffers), 1))()
    for target, buffer in zip(described, buffers, strict=False):
        item = given(buffer) if isinstance(buffer, np.ndarray) else buffer
        target.data, target.nbytes, target.dtype, target.access = item.address, item.nbytes, item.dtype, 3
        target.ndim = len(item.shape) if item.ndim is None else item.ndim
        target.shape[: len(item.shape)] = item.shape
    message = ctypes.create_string_buffer(b"?" * message_nbytes, message_nbytes + 1)
    # 16-byte aligned, as the server's are
    packed = np.zeros(272, np.uint8)
    start = -packed.ctypes.data % 16
    packed[start : start + len(args)] = np.frombuffer(args, np.uint8)
    task = CCall(
        abi,
        len(buffers),
        described,
        packed.ctypes.data + start if args else None,
        len(args),
        threads,
        ctypes.cast(message, ctypes.c_char_p),
        message_nbytes,
    )
    code = function(ctypes.byref(task))
    assert message.raw[message_nbytes] == 0, "the kernel wrote behind the message"
    return code, message.value.decode() if code else ""
