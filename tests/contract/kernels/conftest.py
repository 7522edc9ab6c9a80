"""Every test here runs on every kind of device that has the built-in kernels."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from polymux.core.errors import DeviceUnavailable
from polymux.device.registry import discover
from polymux.segment import call_native
from tests.contract.kernels.kernel_device import REQUESTS, KernelDevice


@pytest.fixture(scope="session", params=REQUESTS)
def device(request: pytest.FixtureRequest) -> Iterator[KernelDevice]:
    """A device of the machine with a stream on all of it."""
    try:
        devices, _ = discover([request.param], native_caller=call_native)
    except DeviceUnavailable as error:
        pytest.skip(f"{request.param}: {error}")
    try:
        kernel_device = KernelDevice(devices[0])
        kernel_device.stream.bind_thread()
        yield kernel_device
    finally:
        for opened in devices:
            opened.close()
