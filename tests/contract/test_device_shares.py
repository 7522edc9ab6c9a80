"""A share's kernels run on the share's cores: looked at from inside the kernels."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from polymux.core.device_spec import Share
from polymux.core.errors import DeviceUnavailable
from polymux.core.implementation import OpenCLSource, PythonFunction
from polymux.core.kernel_spec import BufferParam, KernelSpec
from polymux.core.opencl_range import OpenCLRange
from polymux.core.task_view import Access
from polymux.device.cores import allowed_cores
from polymux.device.cpu import CpuDevice
from polymux.device.registry import discover
from tests.contract.device_rig import Rig

CORES = allowed_cores()
WHERE = KernelSpec("where", outputs=(BufferParam("cores"),))
several = pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")


@pytest.fixture
def restored_affinity() -> Iterator[None]:
    before = os.sched_getaffinity(0)
    yield
    os.sched_setaffinity(0, before)


def where(cores: NDArray[np.int32]) -> None:
    """Write 1 for every core that the calling thread may run on."""
    cores[list(os.sched_getaffinity(0))] = 1


def where_in_parallel(cores: NDArray[np.int32], team: Any) -> None:
    """Write for every core which thread ran there, and how many cores that thread may run on."""
    together = threading.Barrier(team.size)

    def look(begin: int, end: int) -> None:
        together.wait(30)  # so that every chunk has a thread of its own
        (core,) = os.sched_getaffinity(0)
        cores[core] += end - begin

    team.parallel_for(team.size * 10, look)


def seen(rig: Rig, implementation: Any) -> dict[int, int]:
    operand = rig.put(np.zeros(max(CORES) + 1, np.int32), Access.WRITE)
    rig.run(WHERE, implementation, [operand])
    counts = {core: int(count) for core, count in enumerate(rig.get(operand)) if count}
    rig.free()
    return counts


@pytest.mark.parametrize("core", CORES[:2])
def test_a_cpu_device_of_one_core_runs_its_kernels_on_that_core(restored_affinity: None, core: int) -> None:
    (device, *_), _ = discover([f"cpu:{core}"])
    rig = Rig(device)
    rig.stream.bind_thread()
    assert seen(rig, PythonFunction(where)) == {core: 1}
    assert seen(rig, PythonFunction(where_in_parallel, parallel=True)) == {core: 10}
    device.close()


@several
def test_a_stream_of_several_cores_has_one_thread_bound_to_each_while_a_kernel_is_parallel(
    restored_affinity: None,
) -> None:
    (device, *_), _ = discover(["cpu"])
    rig = Rig(device)
    rig.stream.bind_thread()
    assert seen(rig, PythonFunction(where)) == dict.fromkeys(CORES, 1)
    assert seen(rig, PythonFunction(where_in_parallel, parallel=True)) == dict.fromkeys(CORES, 10)
    assert seen(rig, PythonFunction(where)) == dict.fromkeys(CORES, 1)
    device.close()


@several
def test_a_share_of_a_cpu_device_names_its_cores_by_position(restored_affinity: None) -> None:
    (device, *_), _ = discover([f"cpu:{CORES[-1]},{CORES[0]}"])
    assert isinstance(device, CpuDevice)
    for unit, core in enumerate((CORES[-1], CORES[0])):
        rig = Rig(device, Share((unit,)))
        rig.stream.bind_thread()
        assert seen(rig, PythonFunction(where)) == {core: 1}
    device.close()


@several
def test_sub_devices_of_pocl_compute_on_the_cores_of_their_share() -> None:
    try:
        (device, *_), _ = discover(["opencl"])
    except DeviceUnavailable as absent:
        pytest.skip(absent.reason)
    if os.uname().machine != "x86_64" or "Portable Computing Language" not in device.spec.details:
        pytest.skip("only on PoCL for x86-64 a kernel can tell its core")
    if tuple(range(os.cpu_count() or 1)) != CORES:
        pytest.skip("PoCL binds its threads to cores only where the process may use all of them")
    source = """
    __kernel void where(__global int *cores) {
        float x = get_global_id(0);
        for (int i = 0; i < 100000; i++) x = x * 0.99f + 1.0f;  /* long enough for every thread to take some */
        uint low, high, core;
        __asm__ volatile("rdtscp" : "=a"(low), "=d"(high), "=c"(core));
        atomic_add(&cores[core & 4095], x < 0 ? 0 : 1);
    }"""
    look = OpenCLSource(source, OpenCLRange("where", (64,), (1,)))
    whole = seen(Rig(device), look)
    assert sum(whole.values()) == 64
    assert set(whole) <= set(CORES)
    for unit in range(device.spec.units):
        assert seen(Rig(device, Share((unit,))), look) == {unit: 64}
    device.close()
