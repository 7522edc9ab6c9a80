"""As much of CuPy as the cuda device uses, in host memory: cuBLAS counts by columns here as well."""

from __future__ import annotations

import ctypes
import types
from typing import Any

import numpy as np
import pytest

TYPES = {0: np.float32, 1: np.float64}


class Memory:
    """A ``MemoryPointer``."""

    def __init__(self, block: np.ndarray, offset: int = 0) -> None:
        self.block, self.offset = block, offset

    @property
    def ptr(self) -> int:
        return self.block.ctypes.data + self.offset

    def __add__(self, offset: int) -> Memory:
        return Memory(self.block, self.offset + offset)

    def memset(self, value: int, nbytes: int) -> None:
        ctypes.memset(self.ptr, value, nbytes)

    def copy_from_host_async(self, address: int, nbytes: int, stream: Stream) -> None:
        assert isinstance(stream, Stream)
        ctypes.memmove(self.ptr, address, nbytes)

    def copy_to_host_async(self, address: int, nbytes: int, stream: Stream) -> None:
        assert isinstance(stream, Stream)
        ctypes.memmove(address, self.ptr, nbytes)

    def copy_from_device_async(self, source: Memory, nbytes: int, stream: Stream) -> None:
        assert isinstance(stream, Stream)
        ctypes.memmove(self.ptr, source.ptr, nbytes)


class Array(np.ndarray):
    """An ``ndarray`` whose ``data`` is a pointer."""

    @property
    def data(self) -> Any:  # type: ignore[override]
        return types.SimpleNamespace(ptr=self.ctypes.data)


class Stream:
    def __init__(self, non_blocking: bool) -> None:
        assert non_blocking

    def synchronize(self) -> None:
        pass

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class CUDARuntimeError(RuntimeError):
    """As CuPy's: the text begins with the error's name."""


class OutOfMemoryError(MemoryError):
    pass


def ndarray(shape: tuple[int, ...], dtype: Any, memptr: Memory) -> np.ndarray:
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    part = memptr.block[memptr.offset : memptr.offset + nbytes]
    return part.view(dtype).reshape(shape).view(Array)


def alloc(nbytes: int) -> Memory:
    if nbytes > 1 << 30:
        raise OutOfMemoryError(f"{nbytes} bytes")
    return Memory(np.full(nbytes, 255, np.uint8))


def gemm_ex(
    handle: str, op_a: int, op_b: int, m: int, n: int, k: int, alpha: int, a: int, a_kind: int, lda: int, b: int,
    b_kind: int, ldb: int, beta: int, c: int, c_kind: int, ldc: int, compute: int, algorithm: int,
) -> None:  # fmt: skip
    """``C = alpha A B + beta C`` of matrices stored by columns, as cublasGemmEx without transposing."""
    assert (handle, op_a, op_b, a_kind, b_kind, algorithm) == ("handle", 0, 0, c_kind, c_kind, -1)
    assert compute in ((70,) if c_kind else (68, 74, 75, 77))
    assert (lda >= m, ldb >= k, ldc >= m) == (True, True, True)
    kind = np.dtype(TYPES[c_kind])

    def columns(address: int, rows: int, count: int, step: int) -> np.ndarray:
        size = (step * (count - 1) + rows) * kind.itemsize
        flat = np.frombuffer((ctypes.c_char * size).from_address(address), kind)
        return np.lib.stride_tricks.as_strided(flat, (rows, count), (kind.itemsize, step * kind.itemsize))

    factors = [columns(address, 1, 1, 1)[0, 0] for address in (alpha, beta)]
    assert factors == [1, 0]
    columns(c, m, n, ldc)[...] = columns(a, m, k, lda) @ columns(b, k, n, ldb)


def install(monkeypatch: pytest.MonkeyPatch, gpus: int = 2) -> None:
    """Have ``import cupy`` find this."""
    properties = {
        "name": b"Fake GPU",
        "totalGlobalMem": 1 << 34,
        "multiProcessorCount": 4,
        "major": 9,
        "minor": 0,
    }
    runtime = types.SimpleNamespace(
        getDeviceCount=lambda: gpus,
        getDeviceProperties=lambda ordinal: properties if ordinal < gpus else None,
        runtimeGetVersion=lambda: 12040,
        deviceSynchronize=lambda: None,
        deviceCanAccessPeer=lambda one, other: int(one != other),
        setDevice=lambda ordinal: None,
        CUDARuntimeError=CUDARuntimeError,
    )
    modules = {name: types.ModuleType(name) for name in ("cupy", "cupy.cuda", "cupy.cuda.device")}
    modules |= {name: types.ModuleType(name) for name in ("cupy_backends", "cupy_backends.cuda")}
    modules |= {f"cupy_backends.cuda.{name}": types.ModuleType(name) for name in ("libs", "libs.cublas")}
    cupy, cuda, device = modules["cupy"], modules["cupy.cuda"], modules["cupy.cuda.device"]
    device.get_cublas_handle = lambda: "handle"  # type: ignore[attr-defined]
    cublas = modules["cupy_backends.cuda.libs.cublas"]
    cublas.gemmEx = gemm_ex  # type: ignore[attr-defined]
    modules["cupy_backends.cuda.libs"].cublas = cublas  # type: ignore[attr-defined]
    contents: dict[str, Any] = {
        "Device": lambda ordinal: Stream(non_blocking=ordinal is not None),
        "Stream": Stream,
        "alloc": alloc,
        "runtime": runtime,
        "memory": types.SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
        "device": device,
    }
    cuda.__dict__.update(contents)
    cupy.__dict__.update(
        {
            "cuda": cuda,
            "ndarray": ndarray,
            "pad": _pad,
            "lib": types.SimpleNamespace(stride_tricks=types.SimpleNamespace(as_strided=_as_strided)),
            "__version__": "0.fake",
        }
    )
    for name, module in modules.items():
        monkeypatch.setitem(__import__("sys").modules, name, module)


def _pad(array: np.ndarray, widths: Any) -> np.ndarray:
    return np.pad(array, widths).view(Array)


def _as_strided(array: np.ndarray, shape: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
    return np.lib.stride_tricks.as_strided(array, shape, strides, subok=True)
