"""Chunks by PyTorch, which only this folder's environment has: the same as NumPy within the bound of the precision."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: make torch")

import torch

from polymux.device.registry import close_all, discover
from tests.contract.kernels.kernel_device import KernelDevice
from tests.contract.kernels.test_chunks import close
from tests.contract.kernels.test_images import STEPS, convolved, random


@pytest.fixture
def cpu() -> Iterator[KernelDevice]:
    devices, _ = discover(["cpu"])
    yield KernelDevice(devices[0])
    close_all(devices)


def lower(result: np.ndarray, expected: np.ndarray, bound: np.ndarray, depth: int) -> None:
    assert (np.abs(result - expected) <= (3 / 256 + depth / 2**23) * bound + 1e-30).all()


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (65, 130, 33), (300, 200, 700), (5, 4, 0)])
def test_products_are_within_the_bound_of_their_precision(cpu: KernelDevice, m: int, n: int, k: int) -> None:
    a, b = random((m, k), "f4", 1), random((k, n), "f4", 2)
    expected, bound = a.astype("f8") @ b, np.abs(a).astype("f8") @ np.abs(b)
    c = np.full((m, n), np.nan, "f4")
    cpu.run("coexec_gemm", [a, b], [c], method=3)
    close(c, expected, bound)
    c[...] = np.nan
    cpu.run("coexec_gemm_bf16", [a, b], [c])
    lower(c, expected, bound, k)


@pytest.mark.parametrize("scalars", STEPS)
@pytest.mark.parametrize("groups", [1, 2])
def test_convolutions_are_within_the_bound_of_their_precision(
    cpu: KernelDevice, scalars: dict[str, int], groups: int
) -> None:
    x, weight = random((3, 6, 11, 14), "f4", 1), random((8, 6 // groups, 3, 3), "f4", 2)
    expected = convolved(x.astype("f8"), weight.astype("f8"), groups, scalars)
    bound = convolved(np.abs(x).astype("f8"), np.abs(weight), groups, scalars)
    y = np.full(expected.shape, np.nan, "f4")
    cpu.run("coexec_conv2d", [x, weight], [y], method=3, groups=groups, **scalars)
    close(y, expected, bound)
    y[...] = np.nan
    cpu.run("coexec_conv2d_bf16", [x, weight], [y], groups=groups, **scalars)
    lower(y, expected, bound, 54)


def test_a_range_of_lower_precision_leaves_the_rest_alone(cpu: KernelDevice) -> None:
    a, b, c = random((20, 30), "f4", 1), random((30, 10), "f4", 2), np.full((20, 10), 77, "f4")
    cpu.run("coexec_gemm_bf16", [a, b], [c], first=5, count=6)
    assert (c[:5] == 77).all()
    assert (c[11:] == 77).all()
    assert (c[5:11] != 77).all()


def test_pytorch_of_the_application_keeps_its_threads(cpu: KernelDevice) -> None:
    before = torch.get_num_threads()
    a, b, c = random((20, 30), "f4", 1), random((30, 10), "f4", 2), np.zeros((20, 10), "f4")
    worker = threading.Thread(target=cpu.run, args=("coexec_gemm", [a, b], [c]), kwargs={"method": 3})
    worker.start()
    worker.join()
    assert torch.get_num_threads() == before
