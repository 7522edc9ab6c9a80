"""What is particular to OpenCL devices: programs, binaries, plans, and drivers that are not there."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polymux.core.device_spec import Share
from polymux.core.dtype import DType
from polymux.core.errors import ConfigError, DeviceUnavailable
from polymux.core.implementation import OpenCLBinary, OpenCLSource
from polymux.core.kernel_spec import BufferParam, KernelSpec, ScalarParam
from polymux.core.opencl_plan import (
    BufferArgument,
    LocalArgument,
    OpenCLLaunch,
    OpenCLPlan,
    ScalarArgument,
    ScratchArgument,
)
from polymux.core.opencl_range import OpenCLRange
from polymux.core.status import TaskStatus
from polymux.core.task_view import Access
from polymux.device.opencl import OpenCLDevice
from polymux.device.protocol import BuildsAhead, LaunchError, Operand
from polymux.device.registry import discover
from tests.contract.device_rig import Rig

FILL = """
__kernel void fill(__global float *out, float value) { out[get_global_id(0)] = value; }
__kernel void add(__global float *out, float value) { out[get_global_id(0)] += value; }
"""
SPEC = KernelSpec("test_fill", outputs=(BufferParam("out"),), scalars=(ScalarParam("value", DType.F32),))


@pytest.fixture
def device() -> Iterator[OpenCLDevice]:
    try:
        devices, _ = discover(["opencl"])
    except DeviceUnavailable as absent:
        pytest.skip(absent.reason)
    assert isinstance(devices[0], OpenCLDevice)
    yield devices[0]
    for opened in devices:
        opened.close()


@pytest.fixture
def rig(device: OpenCLDevice) -> Iterator[Rig]:
    rig = Rig(device)
    yield rig
    rig.free()


@pytest.fixture
def out(rig: Rig) -> Operand:
    return rig.put(np.zeros(64, np.float32), Access.WRITE)


def plan_of(plan: OpenCLPlan) -> Any:
    return lambda *_: plan


def one(
    entry: str, *arguments: Any, size: tuple[int, ...] = (64,), local: tuple[int, ...] | None = None
) -> OpenCLPlan:
    return OpenCLPlan((OpenCLLaunch(entry, arguments, size, local),))


def binary(device: OpenCLDevice, path: Path, source: str) -> str:
    import pyopencl as cl

    context = cl.Context([device._handle])
    path.write_bytes(cl.Program(context, source).build().binaries[0])
    return str(path)


def test_source_that_does_not_compile_shows_the_compilers_log(rig: Rig, out: Operand) -> None:
    broken = OpenCLSource(
        "__kernel void f(__global float *x) {\n  oops;\n}", OpenCLRange("f", (1,), arguments=())
    )
    with pytest.raises(
        LaunchError, match=r"its source does not compile for opencl:0: error: source:2:3: .*oops"
    ) as failure:
        rig.run(SPEC, broken, [out], value=1.0)
    assert failure.value.code is TaskStatus.KERNEL_FAILED


@pytest.mark.parametrize(
    ("plan", "problem"),
    [
        (one("missing"), "no function 'missing'; it has add, fill"),
        (one("fill", BufferArgument(0)), "takes 2 arguments, its plan has 1"),
        (
            one("fill", BufferArgument(1), ScalarArgument(DType.F32, 1)),
            r"BufferArgument\(index=1\), with 1 buffers",
        ),
        (
            one("fill", ScratchArgument(0), ScalarArgument(DType.F32, 1)),
            r"ScratchArgument\(index=0\).*0 scratch",
        ),
        (one("fill", BufferArgument(0), ScalarArgument(DType.F64, 1)), "INVALID_ARG_SIZE"),
        (one("fill", BufferArgument(0), ScalarArgument(DType.F32, 1), size=(0,)), r"global size \(0,\)"),
        (one("fill", BufferArgument(0), ScalarArgument(DType.F32, 1), size=(1, 1, 1, 1)), "global size"),
        (
            one("fill", BufferArgument(0), ScalarArgument(DType.F32, 1), local=(48,)),
            r"\(64,\), which is no multiple of.*48",
        ),
        (one("fill", BufferArgument(0), ScalarArgument(DType.F32, 1), local=(8, 8)), "no multiple"),
        (
            one("fill", BufferArgument(0), ScalarArgument(DType.F32, 1), size=(1 << 24,), local=(1 << 24,)),
            "16777216 work-items",
        ),
        (one("fill", BufferArgument(0), LocalArgument(1 << 40)), "1099511627776 bytes of local memory"),
    ],
)
def test_a_plan_that_does_not_fit_is_an_error_that_says_where(
    rig: Rig, out: Operand, plan: OpenCLPlan, problem: str
) -> None:
    with pytest.raises(LaunchError, match=problem) as failure:
        rig.run(SPEC, OpenCLSource(FILL, plan_of(plan)), [out], value=1.0)
    assert failure.value.code is TaskStatus.KERNEL_FAILED
    rig.run(SPEC, OpenCLSource(FILL, OpenCLRange("fill", (64,))), [out], value=2.0)
    assert rig.get(out).tolist() == [2.0] * 64


def test_the_launches_of_a_plan_run_in_order_and_share_scratch_and_local_memory(
    rig: Rig, out: Operand
) -> None:
    source = """
    __kernel void square(__global long *scratch, int n) { int i = get_global_id(0); scratch[i] = (long)i * i + n; }
    __kernel void sum(__global const long *scratch, __global float *out, __local long *part) {
        int i = get_local_id(0);
        part[i] = scratch[i];
        barrier(CLK_LOCAL_MEM_FENCE);
        if (i == 0) { long s = 0; for (int k = 0; k < get_local_size(0); k++) s += part[k]; out[0] = s; }
    }"""
    plan = OpenCLPlan(
        (
            OpenCLLaunch("square", (ScratchArgument(0), ScalarArgument(DType.I32, 1)), (16,)),
            OpenCLLaunch("sum", (ScratchArgument(0), BufferArgument(0), LocalArgument(16 * 8)), (16,), (16,)),
        ),
        scratch_nbytes=(16 * 8,),
    )
    for _ in range(3):
        rig.run(SPEC, OpenCLSource(source, plan_of(plan)), [out], value=0.0)
        assert rig.get(out)[0] == sum(i * i + 1 for i in range(16))


def test_build_options_of_a_task_make_a_program_of_their_own(rig: Rig) -> None:
    source = "__kernel void put(__global T *out) { out[get_global_id(0)] = (T)VALUE; }"

    def planner(spec: KernelSpec, buffers: Any, scalars: Any) -> OpenCLPlan:
        names = {DType.F32: "float", DType.I64: "long"}
        launch = OpenCLLaunch("put", (BufferArgument(0),), buffers[0].shape)
        return OpenCLPlan((launch,), options=(f"-DT={names[buffers[0].dtype]}",))

    implementation = OpenCLSource(source, planner, options="-DVALUE=1.5")
    for dtype, value in ((np.float32, 1.5), (np.int64, 1), (np.float32, 1.5)):
        operand = rig.put(np.zeros(9, dtype), Access.WRITE)
        rig.run(KernelSpec("put", outputs=(BufferParam("out"),)), implementation, [operand])
        assert rig.get(operand).tolist() == [value] * 9


def test_streams_share_a_program_while_one_of_them_uses_it(device: OpenCLDevice) -> None:
    rigs = [Rig(device), Rig(device)]
    implementation = OpenCLSource(FILL, OpenCLRange("fill", (64,)))
    prepared: list[Any] = []
    for rig in rigs:
        operand = rig.put(np.zeros(64, np.float32), Access.WRITE)
        rig.run(SPEC, implementation, [operand], value=1.0)
        prepared.append(rig.stream.prepare(SPEC, implementation))
    first, second = (item._functions(())["fill"].kernel for item in prepared)
    assert first != second
    assert first.program == second.program
    for rig in rigs:
        rig.free()


def test_binaries_are_loaded_one_at_a_time_and_every_exchange_is_counted(
    device: OpenCLDevice, rig: Rig, out: Operand, tmp_path: Path
) -> None:
    first = binary(device, tmp_path / "first.bin", FILL)
    second = binary(device, tmp_path / "second.bin", FILL.replace("= value", "= value + 100"))
    plan = OpenCLRange("fill", (64,)), OpenCLRange("add", (64,))
    fill, add = (OpenCLBinary(first, ("fill", "add"), p) for p in plan)
    other = OpenCLBinary(second, ("fill",), plan[0])
    counts = []
    for implementation in (fill, add, fill, other, other, add):
        rig.run(SPEC, implementation, [out], value=1.0)
        counts.append((device.counters()["reconfigurations"], float(rig.get(out)[63])))
    assert counts == [(0, 1.0), (0, 2.0), (0, 1.0), (1, 101.0), (1, 101.0), (2, 102.0)]


def test_a_binary_that_does_not_fit_is_refused_and_the_loaded_one_stays(
    device: OpenCLDevice, rig: Rig, out: Operand, tmp_path: Path
) -> None:
    good = OpenCLBinary(binary(device, tmp_path / "good.bin", FILL), ("fill",), OpenCLRange("fill", (64,)))
    rig.run(SPEC, good, [out], value=1.0)
    garbage = tmp_path / "garbage.bin"
    garbage.write_bytes(b"\x7fELF of another device" * 100)
    bad = {
        "garbage.bin does not fit opencl:0": OpenCLBinary(str(garbage), ("fill",), good.plan),
        "missing.bin cannot be read": OpenCLBinary(str(tmp_path / "missing.bin"), ("fill",), good.plan),
        "good.bin holds add, fill, not other": OpenCLBinary(good.path, ("fill", "other"), good.plan),
    }
    for problem, implementation in bad.items():
        with pytest.raises(LaunchError, match=problem) as failure:
            rig.run(SPEC, implementation, [out], value=2.0)
        assert failure.value.code is TaskStatus.KERNEL_FAILED
    rig.run(SPEC, good, [out], value=3.0)
    assert rig.get(out)[0] == 3.0
    assert device.counters() == {"reconfigurations": 0}


def test_a_hundred_programs_that_are_forgotten_leave_no_memory_behind(rig: Rig, out: Operand) -> None:
    def resident_nbytes() -> int:
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def use(numbers: range) -> None:
        for number in numbers:
            implementation = OpenCLSource(f"{FILL} // {number}", OpenCLRange("fill", (64,)))
            rig.run(SPEC, implementation, [out], value=1.0)
            rig.device.forget(implementation)

    use(range(20))
    before = resident_nbytes()
    use(range(20, 120))
    assert resident_nbytes() - before < 32 << 20


def test_no_warning_comes_from_pyopencl(rig: Rig, out: Operand) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for value in (1.0, 2.0, 3.0):
            rig.run(SPEC, OpenCLSource(FILL, OpenCLRange("fill", (64,))), [out], value=value)


def test_a_device_that_the_drivers_do_not_list_is_named_with_those_that_they_do(device: OpenCLDevice) -> None:
    with pytest.raises(ConfigError, match=r"device 99.*opencl:0: "):
        discover(["opencl:99"])


def test_memory_can_be_limited_by_an_option(device: OpenCLDevice) -> None:
    (limited, *_), _ = discover(["opencl:0,memory_nbytes=1MiB,streams=3"])
    assert (limited.spec.memory_nbytes, limited.spec.streams) == (1 << 20, 3)
    with pytest.raises(MemoryError):
        limited.allocate((1 << 20) + 1)
    limited.close()


def test_shares_that_are_no_neighbours_are_refused(device: OpenCLDevice) -> None:
    if device.spec.units < 3:
        pytest.skip("needs three units")
    with pytest.raises(Exception, match="neighbouring"):
        device.open_stream(Share((0, 2)))


def test_pyopencl_is_not_imported_unless_it_is_asked_for() -> None:
    code = "import sys, polymux.device.registry as r; r.discover(['cpu']); print('pyopencl' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"


def test_without_a_driver_the_reason_and_the_remedy_are_given() -> None:
    code = "import polymux.device.registry as r; d, a = r.discover(); print(len(d), a[0].name, a[0].reason)"
    environment = {**os.environ, "OCL_ICD_VENDORS": "/nonexistent"}
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert run.stdout.startswith("1 opencl no OpenCL driver is installed")
    assert "pip install 'polymux[opencl]'" in run.stdout


def test_devices_of_one_driver_that_are_opened_together_copy_from_each_other() -> None:
    """PoCL can be told to show two devices; Polymux would use one of them, since both are the same cores."""
    code = """
import numpy as np
from polymux.core.device_spec import DeviceSpec, Share
from polymux.core.ids import DeviceId
from polymux.device import pocl
from polymux.device.opencl import OpenCLDevice
from polymux.device.opencl_discovery import Contexts, Listed, import_pyopencl
cl = import_pyopencl()
listed = [Listed(p, handle) for p in cl.get_platforms() if p.name == pocl.PLATFORM for handle in p.get_devices()]
assert len(listed) >= 2, listed
listed = [item for item in listed if item.platform == listed[0].platform][:2]
contexts = Contexts(cl, listed)
assert Contexts(cl, listed[:1]).of(listed[0]) is None
spec = lambda n: DeviceSpec(DeviceId(f"opencl:{n}"), "opencl", "x", 1 << 20, "own", 1, 1, ("opencl",))
devices = [OpenCLDevice(spec(n), cl, item.handle, contexts.of(item)) for n, item in enumerate(listed)]
alone = OpenCLDevice(spec(2), cl, listed[0].handle)
assert devices[0].is_peer(devices[1]) and not devices[0].is_peer(alone)
source, target = devices[0].allocate(100_000), devices[1].allocate(100_000)
sent, found = np.arange(100_000).astype(np.uint8), np.zeros(100_000, np.uint8)
devices[0].open_stream(Share()).copy_in(source, sent)
stream = devices[1].open_stream(Share())
stream.copy_peer(target, devices[0], source, 99_999)
stream.copy_out(target, found)
assert (found[:-1] == sent[:-1]).all() and found[-1] == 0
print("copied")
"""
    try:
        discover(["opencl"])
    except DeviceUnavailable as absent:
        pytest.skip(absent.reason)
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "POCL_DEVICES": "pthread pthread"},
    )
    if "assert len(listed) >= 2" in run.stderr:
        pytest.skip("this PoCL shows one device only")
    assert run.stdout.strip() == "copied", run.stderr


def test_a_source_is_built_before_its_first_task_where_its_options_are_known(rig: Rig) -> None:
    broken = OpenCLSource("__kernel void fill(", OpenCLRange("fill", (64,)))
    prepared = rig.stream.prepare(SPEC, broken)
    assert isinstance(prepared, BuildsAhead)
    with pytest.raises(LaunchError, match="does not compile"):
        prepared.build()
    depends = OpenCLSource("__kernel void fill(", lambda *_: None)
    prepared = rig.stream.prepare(SPEC, depends)
    assert isinstance(prepared, BuildsAhead)
    prepared.build()  # its options are those of its tasks
