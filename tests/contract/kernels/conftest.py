"""Tests with `device` run on every kind of device that has the built-in kernels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from polymux.core.errors import DeviceUnavailable
from polymux.device.registry import close_all, discover
from polymux.segment import call_native
from tests.contract.kernels.kernel_device import REQUESTS, KernelDevice


@contextmanager
def opened(request: str) -> Iterator[KernelDevice]:
    try:
        devices, _ = discover([request], native_caller=call_native)
    except DeviceUnavailable as error:
        pytest.skip(f"{request}: {error}")
    try:
        found = KernelDevice(devices[0])
        yield found
    finally:
        close_all(devices)


@pytest.fixture(scope="session", params=REQUESTS)
def device(request: pytest.FixtureRequest) -> Iterator[KernelDevice]:
    """A device of the machine with a stream on all of it."""
    with opened(request.param) as found:
        yield found


@pytest.fixture(scope="session")
def cpu_device() -> Iterator[KernelDevice]:
    """All cores, on host memory."""
    with opened("cpu") as found:
        yield found


@pytest.fixture(scope="session")
def opencl_device() -> Iterator[KernelDevice]:
    """The first OpenCL device."""
    with opened("opencl") as found:
        yield found
