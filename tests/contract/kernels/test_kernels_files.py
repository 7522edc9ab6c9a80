"""Kernels of files on devices: the example's, a native library, an OpenCL program binary."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polymux.core.dtype import DType
from polymux.core.errors import ConfigError, InvalidRequest
from polymux.core.implementation import OpenCLBinary
from polymux.core.kernel_spec import BufferParam, KernelSpec, ScalarParam
from polymux.core.opencl_range import OpenCLRange
from polymux.device.native_library import resolve
from polymux.device.opencl_discovery import import_pyopencl, list_devices
from polymux.device.protocol import LaunchError
from polymux.kernel.definition import Definition
from polymux.kernel.load import load_kernels
from polymux.kernel.program_binary import write_program_binary
from polymux.kernel.table import DispatchTable
from tests.contract.kernels.kernel_device import KernelDevice

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples" / "kernels"


def definition(table: DispatchTable, name: str) -> Definition:
    return Definition(table.spec(name), tuple(table.implementations(name).values()))


def mandelbrot(shape: tuple[int, int], left: float, top: float, step: float, limit: int) -> np.ndarray:
    """One pixel after the other."""
    counts = np.zeros(shape, "i4")
    for row, column in np.ndindex(shape):
        re, im, x, y = left + column * step, top + row * step, 0.0, 0.0
        for count in range(limit + 1):
            counts[row, column] = count
            xx, yy = x * x, y * y
            if count == limit or not xx + yy <= 4.0:
                break
            x, y = xx - yy + re, (x + x) * y + im
    return counts


def test_the_examples_kernel_draws_the_same_on_every_device(device: KernelDevice) -> None:
    table = load_kernels([EXAMPLES / "kernels.py", EXAMPLES / "kernels.toml"])
    assert table.apis("mandelbrot") == ("cpu", "opencl")
    scalars: dict[str, Any] = {"left": -2.2, "top": -1.2, "step": 0.05, "limit": 60}
    image = np.full((48, 65), -1, "i4")
    device.run(definition(table, "mandelbrot"), [], [image], **scalars)
    assert (image == mandelbrot(image.shape, **scalars)).all()


def test_the_examples_top_k_returns_the_shapes_of_its_results() -> None:
    table = load_kernels([EXAMPLES / "kernels.py"])
    function = table.implementations("top_k")["cpu"].function  # type: ignore[union-attr]
    x = np.array([3.0, 9.0, 1.0, 7.0])
    values, indices = np.zeros(4), np.zeros(4, "i8")
    assert function(x, values, indices, k=2) == [(2,), (2,)]
    assert values[:2].tolist() == [9.0, 7.0]
    assert indices[:2].tolist() == [1, 3]


NATIVE = """
#include <polymux.h>
uint32_t polymux_kernel_library_abi(void) { return ABI; }
POLYMUX_API int twice(polymux_kernel_call* call) {
  const polymux_kernel_buffer *x = &call->buffers[0], *y = &call->buffers[1];
  for (uint64_t i = 0; i < x->nbytes / 8; ++i) ((double*)y->data)[i] = 2 * ((const double*)x->data)[i];
  return 0;
}
"""
NATIVE_TOML = """
[[kernel]]
name = "twice"
inputs = [{ name = "x", dtypes = ["f8"] }]
outputs = [{ name = "y", dtypes = ["f8"] }]
native = { library = "libtwice.so", symbol = "SYMBOL" }
"""


@pytest.fixture
def native_folder(tmp_path: Path) -> Path:
    for abi in (1, 7):
        source = tmp_path / "twice.c"
        source.write_text(NATIVE.replace("ABI;", f"{abi};"))
        words = ["gcc", "-shared", "-fPIC", "-I", str(ROOT / "include"), str(source), "-o"]
        subprocess.run([*words, str(tmp_path / f"libtwice{abi}.so")], check=True)
    (tmp_path / "libtwice1.so").rename(tmp_path / "libtwice.so")
    (tmp_path / "kernels.toml").write_text(NATIVE_TOML.replace("SYMBOL", "twice"))
    return tmp_path


def test_a_native_library_is_called(cpu_device: KernelDevice, native_folder: Path) -> None:
    table = load_kernels([native_folder / "kernels.toml"], check_native=resolve)
    y = np.zeros(5)
    cpu_device.run(definition(table, "twice"), [np.arange(5.0)], [y])
    assert y.tolist() == [0, 2, 4, 6, 8]


def test_a_native_library_of_another_abi_is_refused_when_it_is_loaded(native_folder: Path) -> None:
    (native_folder / "libtwice7.so").replace(native_folder / "libtwice.so")
    with pytest.raises(
        ConfigError, match=r"native\.library = .*libtwice\.so': .* was built for kernel ABI 7"
    ):
        load_kernels([native_folder / "kernels.toml"], check_native=resolve)


def test_a_missing_symbol_is_refused_when_the_library_is_loaded(native_folder: Path) -> None:
    (native_folder / "kernels.toml").write_text(NATIVE_TOML.replace("SYMBOL", "thrice"))
    with pytest.raises(ConfigError, match="has no symbol 'thrice'"):
        load_kernels([native_folder / "kernels.toml"], check_native=resolve)


def test_a_library_that_is_none_is_refused_when_it_is_loaded(native_folder: Path) -> None:
    (native_folder / "libtwice.so").write_text("no library")
    with pytest.raises(ConfigError, match="cannot be loaded"):
        load_kernels([native_folder / "kernels.toml"], check_native=resolve)


SQUARE = """
__kernel void square(__global const float *x, __global float *y, long n) {
  long i = get_global_id(0);
  if (i < n) y[i] = x[i] * x[i];
}
"""
SHIFT = """
__kernel void shift(__global const float *x, __global float *y, float by, long n) {
  long i = get_global_id(0);
  if (i < n) y[i] = x[i] + by;
}
"""
BINARY_TOML = """
[[kernel]]
name = "square"
inputs = [{ name = "x", dtypes = ["f4"] }]
outputs = [{ name = "y", dtypes = ["f4"] }]
opencl = { binary = "set.bin", global_size = ["x.size"], local_size = [16], arguments = ["x.size"] }

[[kernel]]
name = "shift"
inputs = [{ name = "x", dtypes = ["f4"] }]
outputs = [{ name = "y", dtypes = ["f4"] }]
scalars = [{ name = "by", dtype = "f4" }]
opencl = { binary = "set.bin", global_size = ["x.size"], local_size = [16], arguments = ["by", "x.size"] }
"""


@pytest.fixture
def handle(opencl_device: KernelDevice) -> Any:
    """The driver's handle of the OpenCL device under test."""
    return list_devices(import_pyopencl())[0][0].handle


def test_a_program_binary_holds_several_kernels(
    opencl_device: KernelDevice, handle: Any, tmp_path: Path
) -> None:
    entries = write_program_binary(tmp_path / "set.bin", handle, [SQUARE, SHIFT])
    assert entries == ("shift", "square")
    (tmp_path / "kernels.toml").write_text(BINARY_TOML)
    table = load_kernels([tmp_path / "kernels.toml"])
    x, y = np.arange(100, dtype="f4"), np.zeros(100, "f4")
    before = opencl_device.device.counters()["reconfigurations"]
    opencl_device.run(definition(table, "square"), [x], [y])
    assert (y == x * x).all()
    first = opencl_device.device.counters()["reconfigurations"]
    opencl_device.run(definition(table, "shift"), [x], [y], by=0.5)
    opencl_device.run(definition(table, "square"), [x], [y])
    assert (y == x * x).all()
    assert opencl_device.device.counters()["reconfigurations"] == first <= before + 1


def test_another_binary_reconfigures_the_device(
    opencl_device: KernelDevice, handle: Any, tmp_path: Path
) -> None:
    kernels = {}
    for name, source in (("square", SQUARE), ("shift", SHIFT)):
        (tmp_path / name).mkdir()
        write_program_binary(tmp_path / name / "set.bin", handle, [source])
        (part,) = (part for part in BINARY_TOML.split("[[kernel]]") if f'"{name}"' in part)
        (tmp_path / name / "kernels.toml").write_text(f"[[kernel]]{part}")
        kernels[name] = definition(load_kernels([tmp_path / name / "kernels.toml"]), name)
    x, y = np.arange(100, dtype="f4"), np.zeros(100, "f4")
    opencl_device.run(kernels["square"], [x], [y])
    before = opencl_device.device.counters()["reconfigurations"]
    for _ in range(3):
        opencl_device.run(kernels["shift"], [x], [y], by=1.0)
        opencl_device.run(kernels["shift"], [x], [y], by=2.0)
        assert (y == x + 2).all()
        opencl_device.run(kernels["square"], [x], [y])
        assert (y == x * x).all()
    assert opencl_device.device.counters()["reconfigurations"] == before + 6


def test_a_binary_that_does_not_fit_the_device_is_named(
    opencl_device: KernelDevice, handle: Any, tmp_path: Path
) -> None:
    (tmp_path / "set.bin").write_bytes(b"no binary of any device")
    spec = KernelSpec("square", (BufferParam("x"),), (BufferParam("y"),), (ScalarParam("n", DType.I64),))
    binary = OpenCLBinary(str(tmp_path / "set.bin"), ("square",), OpenCLRange("square", ("n",)))
    with pytest.raises(LaunchError, match=r"program binary set\.bin does not fit opencl:0"):
        opencl_device.run(Definition(spec, (binary,)), [np.zeros(4, "f4")], [np.zeros(4, "f4")], n=4)
    write_program_binary(tmp_path / "set.bin", handle, [SHIFT])
    with pytest.raises(LaunchError, match=r"set\.bin holds shift, not square"):
        opencl_device.run(Definition(spec, (binary,)), [np.zeros(4, "f4")], [np.zeros(4, "f4")], n=4)


def test_sources_that_do_not_compile_leave_no_binary(handle: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="the sources do not compile for"):
        write_program_binary(tmp_path / "set.bin", handle, ["__kernel void broken( {"])
    with pytest.raises(InvalidRequest, match="hold no __kernel function"):
        write_program_binary(tmp_path / "set.bin", handle, ["float f(float x) { return x; }"])
    assert list(tmp_path.iterdir()) == []
