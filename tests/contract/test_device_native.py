"""Native kernels: real shared libraries, compiled here, loaded and called."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from polymux.core.dtype import DType
from polymux.core.implementation import NativeFunction
from polymux.core.kernel_spec import BufferParam, KernelSpec, ScalarParam
from polymux.core.status import TaskStatus
from polymux.core.task_view import Access
from polymux.device.cores import allowed_cores
from polymux.device.native_library import KERNEL_ABI, load, resolve
from polymux.device.protocol import Device, LaunchError
from polymux.device.registry import discover
from polymux.segment import call_native
from tests.contract.device_rig import Rig

ROOT = Path(__file__).resolve().parents[2]
COMPILER = shutil.which("gcc") or shutil.which("cc")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")

SOURCE = """
#include <polymux.h>
#include <string.h>
uint32_t polymux_kernel_library_abi(void) { return POLYMUX_KERNEL_ABI; }
POLYMUX_API int scale(polymux_kernel_call *call) {
  const float *x = call->buffers[0].data;
  float *y = call->buffers[1].data, a = *(const float *)call->args;
  for (int64_t i = 0; i < call->buffers[0].shape[0]; i++) y[i] = a * x[i];
  return 0;
}
POLYMUX_API int threads(polymux_kernel_call *call) { *(int32_t *)call->buffers[0].data = call->threads; return 0; }
POLYMUX_API int refuse(polymux_kernel_call *call) {
  strcpy(call->message, "x is too short");
  return POLYMUX_BAD_ARGUMENT;
}
POLYMUX_API int refuse_silently(polymux_kernel_call *call) { (void)call; return 4; }
"""
SCALE = KernelSpec("scale", (BufferParam("x"),), (BufferParam("y"),), (ScalarParam("a", DType.F32),))
Build = Callable[..., str]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    def compiled(source: str = SOURCE, name: str = "kernels") -> str:
        text, library = tmp_path / f"{name}.c", tmp_path / f"{name}.so"
        text.write_text(source)
        command = [str(COMPILER), "-shared", "-fPIC", f"-I{ROOT / 'include'}", str(text), "-o", str(library)]
        subprocess.run(command, check=True)
        return str(library)

    return compiled


def opened(request: str) -> Device:
    (device, *_), _ = discover([request], native_caller=call_native)
    return device


@pytest.mark.parametrize("memory", ["host", "own"])
def test_a_c_function_computes_on_both_kinds_of_memory(build: Build, memory: str) -> None:
    device = opened(f"cpu:{allowed_cores()[0]},memory={memory}")
    rig = Rig(device)
    x, y = rig.put(np.arange(1001, dtype=np.float32)), rig.put(np.zeros(1001, np.float32), Access.WRITE)
    assert rig.run(SCALE, NativeFunction(build(), "scale"), [x, y], a=0.5) is None
    np.testing.assert_array_equal(rig.get(y), np.arange(1001, dtype=np.float32) / 2)
    device.close()


def test_a_c_function_is_told_the_cores_of_its_share_if_it_uses_them(build: Build) -> None:
    device = opened("cpu")
    rig = Rig(device)
    count = rig.put(np.zeros(1, np.int32), Access.WRITE)
    spec = KernelSpec("threads", outputs=(BufferParam("count"),))
    library = build()
    for threads, expected in ((True, device.spec.units), (False, 1)):
        rig.run(spec, NativeFunction(library, "threads", threads), [count])
        assert rig.get(count)[0] == expected
    device.close()


@pytest.mark.parametrize(
    ("symbol", "status", "problem"),
    [
        ("refuse", TaskStatus.BAD_ARGUMENT, "x is too short"),
        ("refuse_silently", TaskStatus.KERNEL_FAILED, "it returned 4 and said nothing"),
    ],
)
def test_what_a_c_function_refuses_is_the_tasks_error(
    build: Build, symbol: str, status: TaskStatus, problem: str
) -> None:
    device = opened("cpu")
    with pytest.raises(LaunchError, match=problem) as failure:
        Rig(device).run(KernelSpec("refusing"), NativeFunction(build(), symbol), [])
    assert failure.value.code is status
    device.close()


def test_scalars_that_the_kernel_does_not_take_are_a_bad_argument(build: Build) -> None:
    device = opened("cpu")
    rig = Rig(device)
    operands = [rig.put(np.zeros(1, np.float32)), rig.put(np.zeros(1, np.float32), Access.WRITE)]
    with pytest.raises(LaunchError, match="no scalar 'b'") as failure:
        rig.run(SCALE, NativeFunction(build(), "scale"), operands, a=1.0, b=2.0)
    assert failure.value.code is TaskStatus.BAD_ARGUMENT
    device.close()


def test_without_a_caller_native_kernels_are_refused(build: Build) -> None:
    (device, *_), _ = discover(["cpu"])
    with pytest.raises(LaunchError, match="without a caller"):
        Rig(device).run(SCALE, NativeFunction(build(), "scale"), [], a=1.0)
    device.close()


def test_a_library_is_loaded_once_by_whatever_path_it_is_named(build: Build, tmp_path: Path) -> None:
    library = build()
    link = tmp_path / "link.so"
    link.symlink_to(library)
    assert load(library) is load(str(link))
    assert resolve(NativeFunction(library, "scale")) == resolve(NativeFunction(str(link), "scale"))


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("int x;", r"is no kernel library: it does not export polymux_kernel_library_abi"),
        (
            SOURCE.replace("return POLYMUX_KERNEL_ABI", "return 99"),
            "was built for kernel ABI 99, this Polymux has 1",
        ),
        ("extern int missing(void); int f(void) { return missing(); }", "no kernel library|cannot be loaded"),
    ],
)
def test_a_library_of_another_kind_or_abi_is_refused(build: Build, source: str, problem: str) -> None:
    library = build(source, "other")
    for _ in range(2):
        with pytest.raises(LaunchError, match=problem) as failure:
            load(library)
        assert failure.value.code is TaskStatus.KERNEL_FAILED


def test_a_file_that_is_no_library_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "text.so"
    text.write_text("no library")
    with pytest.raises(LaunchError, match=r"text\.so cannot be loaded"):
        load(str(text))


def test_a_symbol_that_the_library_lacks_is_named(build: Build) -> None:
    with pytest.raises(LaunchError, match=r"has no symbol 'absent'"):
        resolve(NativeFunction(build(), "absent"))


def test_the_abi_is_that_of_the_header() -> None:
    header = (ROOT / "include" / "polymux.h").read_text()
    found = re.search(r"#define POLYMUX_KERNEL_ABI (\d+)", header)
    assert found is not None
    assert int(found[1]) == KERNEL_ABI
