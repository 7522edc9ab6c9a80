"""Which version of a kernel a device runs: the first of its APIs that has one which can be loaded."""

from __future__ import annotations

import sys

from polymux.core.device_spec import DeviceSpec
from polymux.core.implementation import Implementation
from polymux.device.protocol import LaunchError, Prepared, Stream
from polymux.server.kernels import Kernel


def prepare_version(device: DeviceSpec, stream: Stream, kernel: Kernel) -> tuple[Implementation, Prepared]:
    """Make a kernel ready on a stream, with the next version of it where one cannot be loaded.

    Parameters
    ----------
    device : DeviceSpec
        With an API for which the kernel has an implementation.
    stream : Stream
        Of the device.
    kernel : Kernel

    Raises
    ------
    LaunchError
        Why the first version cannot be loaded, when none can.
    """
    first: LaunchError | None = None
    for api in device.apis:
        implementation = kernel.implementations.get(api)
        if implementation is None:
            continue
        try:
            prepared = stream.prepare(kernel.spec, implementation)
        except LaunchError as error:
            first = first or error
            continue
        if first is not None:
            text = f"{kernel.spec.name} runs on {device.id} with its version for {api}: {first.message}"
            print(f"polymux: {text}", file=sys.stderr)
        return implementation, prepared
    assert first is not None, "the device has an API of the kernel"
    raise first
