"""A runtime inside the test's process with devices that can compute together, and a session on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import polymux
from polymux.client import Client
from polymux.coexec import Session
from polymux.core.errors import PolymuxError
from polymux.device.cores import allowed_cores

SIMULATED = """
name = "An accelerator with memory of its own"
memory_nbytes = "64MiB"
units = 1
[transfer]
bandwidth_bytes_per_s = 20e9
latency_ns = 10000
[compute]
latency_ns = 20000
"""


def host_devices() -> list[str]:
    """A cpu device on each of two cores (or twice on the only one), on the host's memory."""
    cores = allowed_cores()
    return [f"cpu:{cores[0]},memory=host", f"cpu:{cores[-1]},memory=host"]


def connect(*devices: str) -> Client:
    return polymux.connect(start=True, name="test", devices=devices)


@pytest.fixture(scope="session")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Two cpu devices, OpenCL on the second core where there is a driver, and a device with memory of its own."""
    file = tmp_path_factory.mktemp("devices") / "simulated.toml"
    file.write_text(SIMULATED)
    devices = [*host_devices(), f"simulated={file}"]
    try:
        made = connect(*devices, "opencl:0,memory=host,streams=1")
    except PolymuxError:
        made = connect(*devices)
    with made:
        yield made


@pytest.fixture(scope="session")
def session(client: Client) -> Iterator[Session]:
    with Session(client, store=False) as made:
        yield made
