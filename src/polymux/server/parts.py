"""What a running server consists of, for the operations that clients ask for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic_ns

from polymux.core.device_spec import AbsentDevice
from polymux.core.errors import InvalidRequest
from polymux.core.ids import SessionId
from polymux.device.energy_meter import EnergyMeters, find_meters
from polymux.device.protocol import Device
from polymux.server.accelerator import Accelerator
from polymux.server.accounting import Accounts
from polymux.server.grants import Grants
from polymux.server.jobs.driver import JobDriver
from polymux.server.kernels import KernelDirectory
from polymux.server.machine import Machine
from polymux.server.measurement import Measurements
from polymux.server.options import RuntimeOptions
from polymux.server.request import Request
from polymux.server.residency import Residency
from polymux.server.scheduling import Scheduler
from polymux.server.session import Session
from polymux.server.slow_work import MAX_WAITING, SlowWork


@dataclass(slots=True)
class Parts:
    """The server's parts.

    Notes
    -----
    `sessions` is changed by the I/O thread only. `slow` does what would hold that thread up.
    """

    options: RuntimeOptions
    devices: tuple[Device, ...]
    absent: tuple[AbsentDevice, ...]
    machine: Machine
    directory: KernelDirectory
    residency: Residency
    measurements: Measurements
    accounts: Accounts
    grants: Grants
    scheduler: Scheduler
    accelerators: tuple[Accelerator, ...]
    jobs: JobDriver
    slow: SlowWork
    stop: Callable[[], None]
    sessions: dict[SessionId, Session] = field(default_factory=dict)
    next_session: int = 1
    started_ns: int = field(default_factory=monotonic_ns)
    energy: EnergyMeters = field(default_factory=find_meters)
    socket: str = ""

    def accelerator(self, stream: str) -> Accelerator:
        """Find the thread of a stream by the stream's name.

        Raises
        ------
        InvalidRequest
            If there is none, with those that there are.
        """
        for accelerator in self.accelerators:
            if accelerator.spec.id == stream:
                return accelerator
        known = ", ".join(accelerator.spec.id for accelerator in self.accelerators) or "none"
        raise InvalidRequest(f"stream {stream!r} does not exist; the server has {known}")

    def later(self, request: Request, work: Callable[[], None]) -> None:
        """Do in a thread of the connection what answers a request; a failure is its answer."""

        def run() -> None:
            try:
                work()
            except Exception as error:
                request.fail(error)

        if not self.slow.submit(request.caller, run):
            request.fail(
                InvalidRequest(
                    f"{MAX_WAITING} requests of this connection wait already; wait for some answers"
                )
            )
