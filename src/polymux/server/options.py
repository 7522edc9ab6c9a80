"""What a runtime is told when it is made."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from polymux.device.own_memory import host_memory_nbytes
from polymux.metrics.address import Address
from polymux.policy import registry

MAX_CLIENTS = 120
"""An accelerator thread sleeps on one doorbell per client, and the system lets it sleep on 128 at once."""

DEFAULT_JOBS = "switchflow"

GIB = 1 << 30


def _half_of_memory() -> int:
    return host_memory_nbytes() // 2


@dataclass(frozen=True, slots=True)
class Limits:
    """What clients may take.

    Parameters
    ----------
    segment_nbytes : int
        Size of a client's segment when it does not ask for one, in bytes. Memory is taken as it is touched.
    max_segment_nbytes : int
        Most that it gets when it does; by default half of the machine's memory.
    max_clients : int
        Sessions at a time, 1 to `MAX_CLIENTS`.
    worker_nbytes : int
        Most memory of its own that a worker process for isolated kernels may take, besides the segment, in bytes; by
        default half of the machine's memory.
    """

    segment_nbytes: int = GIB
    max_segment_nbytes: int = field(default_factory=_half_of_memory)
    max_clients: int = MAX_CLIENTS
    worker_nbytes: int = field(default_factory=_half_of_memory)


@dataclass(frozen=True, slots=True)
class KernelsFile:
    """A kernels file of the operator; with `isolate` its kernels run in worker processes of the applications."""

    path: Path
    isolate: bool = False


@dataclass(frozen=True, slots=True)
class RuntimeOptions:
    """How a runtime works.

    Parameters
    ----------
    devices : tuple of str
        Device requests such as ``cpu:0-0,memory=own`` or ``opencl:0,streams=2``; empty: cpu and every OpenCL device.
    policy : str
        Name of the assignment policy.
    kernels : tuple of KernelsFile
    allow_uids : tuple of int
        Users that may connect besides root and the server's own.
    limits : Limits
    trace : Path, optional
        Where to write a timeline (Chrome trace format, opens in Perfetto) when the runtime closes.
    record : Path, optional
        Where to write events and decisions, one JSON text per line, for ``polymux replay``.
    jobs : str
        Name of the policy by which jobs hold devices.
    metrics : Address, optional
        Where to serve Prometheus metrics over HTTP.
    """

    devices: tuple[str, ...] = ()
    policy: str = registry.DEFAULT
    jobs: str = DEFAULT_JOBS
    kernels: tuple[KernelsFile, ...] = ()
    allow_uids: tuple[int, ...] = ()
    limits: Limits = field(default_factory=Limits)
    trace: Path | None = None
    record: Path | None = None
    metrics: Address | None = None
