"""The cuda device over a CuPy in host memory: what it asks of CuPy. Real GPUs are tested where there are some."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import numpy as np
import pytest

from polymux.core.device_spec import Share
from polymux.core.errors import Closed, ConfigError, DeviceUnavailable, InvalidRequest
from polymux.core.implementation import CudaFunction, PythonFunction
from polymux.core.kernel_spec import KernelSpec
from polymux.core.status import TaskStatus
from polymux.device.cuda import PreparedCuda
from polymux.device.protocol import LaunchError, OutOfMemory
from polymux.device.registry import close_all, discover
from polymux.kernel.chunks import methods
from tests.contract.kernels.kernel_device import KernelDevice
from tests.contract.kernels.test_images import STEPS, convolved, random
from tests.unit.device import fake_cupy


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[KernelDevice]:
    fake_cupy.install(monkeypatch)
    monkeypatch.setattr(methods.Method, "is_installed", True)
    devices, _ = discover(["cuda:1"])
    yield KernelDevice(devices[0])
    close_all(devices)


def test_it_says_what_it_is(device: KernelDevice) -> None:
    spec = device.device.spec
    assert (spec.id, spec.name, spec.memory, spec.units, spec.apis) == (
        "cuda:0",
        "Fake GPU",
        "own",
        4,
        ("cuda",),
    )
    assert spec.memory_nbytes == (1 << 34) - (1 << 30)
    assert "CUDA 12.4" in spec.details


def test_every_gpu_is_opened_when_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cupy.install(monkeypatch, gpus=3)
    devices, _ = discover(["cuda"])
    assert [device.spec.id for device in devices] == ["cuda:0", "cuda:1", "cuda:2"]
    assert devices[0].is_peer(devices[2])
    close_all(devices)


@pytest.mark.parametrize("text", ["cuda:7", "cuda=file", "cuda:x", "cuda:0,shares=split"])
def test_what_cannot_be_asked_for_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    fake_cupy.install(monkeypatch)
    with pytest.raises(ConfigError):
        discover([text])


def test_a_machine_without_gpu_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cupy.install(monkeypatch, gpus=0)
    with pytest.raises(DeviceUnavailable, match="finds no GPU"):
        discover(["cuda"])


def test_memory_is_zeroed_counted_and_copied_at_offsets(device: KernelDevice) -> None:
    memory, other = device.device.allocate(100), device.device.allocate(100)
    out = np.ones(100, np.uint8)
    device.stream.copy_out(memory, out)
    assert not out.any()
    device.stream.copy_in(memory, np.arange(10, dtype=np.uint8), 50)
    device.stream.copy_peer(other, device.device, memory, 60)
    device.stream.copy_out(other, out[:10], 50)
    assert out[:10].tolist() == list(range(10))
    device.device.free(memory)
    with pytest.raises(ValueError, match="no live allocation"):
        device.device.free(memory)
    device.device.free(other)


@pytest.mark.parametrize("nbytes", [1 << 31, 1 << 40])
def test_memory_that_is_not_there_is_refused_with_the_sizes(device: KernelDevice, nbytes: int) -> None:
    with pytest.raises(OutOfMemory, match=str(nbytes)):
        device.device.allocate(nbytes)


def test_a_part_of_a_gpu_and_a_closed_one_are_refused(device: KernelDevice) -> None:
    with pytest.raises(InvalidRequest, match="use all 4"):
        device.device.open_stream(Share((0, 1)))
    device.device.close()
    for use in (lambda: device.device.open_stream(Share()), lambda: device.device.allocate(1)):
        with pytest.raises(Closed):
            use()


def test_a_kernel_for_another_device_is_refused(device: KernelDevice) -> None:
    with pytest.raises(LaunchError) as caught:
        device.stream.prepare(KernelSpec("k"), PythonFunction(print))
    assert caught.value.code is TaskStatus.NO_DEVICE


@pytest.mark.parametrize(
    "kernel", ["coexec_gemm", "coexec_gemm_tf32", "coexec_gemm_fp16", "coexec_gemm_bf16"]
)
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (5, 9, 7), (40, 3, 20), (3, 4, 0)])
def test_gemm_multiplies(device: KernelDevice, kernel: str, m: int, n: int, k: int) -> None:
    a, b, c = random((m, k), "f4", 1), random((k, n), "f4", 2), np.full((m, n), 77, "f4")
    first, left = m // 3, n // 2
    device.run(kernel, [a, b], [c], first=first, first_column=left)
    expected = np.full((m, n), 77, "f4")
    expected[first:, left:] = (a @ b)[first:, left:]
    np.testing.assert_allclose(c, expected, rtol=1e-5, atol=1e-5)


def test_gemm_of_doubles_is_of_their_own_precision_only(device: KernelDevice) -> None:
    a, b, c = random((4, 5), "f8", 1), random((5, 6), "f8", 2), np.zeros((4, 6))
    device.run("coexec_gemm", [a, b], [c])
    np.testing.assert_allclose(c, a @ b, rtol=1e-14)
    arrays = [np.ones((2, 2), "i4") for _ in range(3)]
    with pytest.raises(LaunchError, match="f4, and f8") as caught:
        device.run("coexec_gemm", arrays[:2], arrays[2:])
    assert caught.value.code is TaskStatus.BAD_ARGUMENT


@pytest.mark.parametrize("scalars", STEPS)
@pytest.mark.parametrize("groups", [1, 2])
def test_conv2d_correlates(device: KernelDevice, scalars: dict[str, int], groups: int) -> None:
    x, weight = random((3, 4, 11, 14), "f4", 1), random((6, 4 // groups, 3, 3), "f4", 2)
    expected = convolved(x, weight, groups, scalars)
    y = np.full(expected.shape, 77, "f4")
    low = 3 if groups == 2 else 1
    device.run("coexec_conv2d", [x, weight], [y], groups=groups, first=1, first_output=low, **scalars)
    expected[:1], expected[:, :low] = 77, 77
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-4)


def test_copy_fill_and_noop(device: KernelDevice) -> None:
    x, y = np.arange(12, dtype="i2").reshape(3, 4), np.zeros((3, 4), "i2")
    device.run("copy", [x], [y])
    assert (y == x).all()
    device.run("fill", [], [y], value=5)
    assert (y == 5).all()
    device.run("noop", [x], [])
    with pytest.raises(LaunchError, match="does not fit"):
        device.run("fill", [], [y], value=1e9)


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("cudaErrorIllegalAddress: an illegal memory access was encountered", TaskStatus.DEVICE_FAILED),
        ("cudaErrorLaunchFailure: unspecified launch failure", TaskStatus.DEVICE_FAILED),
        ("cudaErrorECCUncorrectable: uncorrectable ECC error encountered", TaskStatus.DEVICE_FAILED),
        ("cudaErrorInvalidConfiguration: invalid configuration argument", TaskStatus.KERNEL_FAILED),
        ("cudaErrorInvalidValue: invalid argument", TaskStatus.KERNEL_FAILED),
    ],
)
def test_errors_after_which_cuda_can_do_nothing_are_the_devices(
    device: KernelDevice, text: str, status: TaskStatus
) -> None:
    del device

    def fail() -> None:
        raise fake_cupy.CUDARuntimeError(text)

    prepared = PreparedCuda(
        CudaFunction(fail), importlib.import_module("cupy"), 0, fake_cupy.Stream(non_blocking=True)
    )
    with pytest.raises(LaunchError) as failed:
        prepared.run([], {})
    assert failed.value.code == status
