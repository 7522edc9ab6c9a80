"""The runtime: all accelerators of a machine behind one set of threads; alone in a process, or inside an application.

Threads: one for I/O, one for the scheduler, one per stream, one that copies ahead of moving queues, one that ends the
tasks of queues without a device, and one for each connection whose requests take long.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from polymux.core.device_spec import AbsentDevice
from polymux.core.errors import InvalidRequest, PermissionDenied
from polymux.core.event import DeviceAdded, DeviceLost
from polymux.core.ids import DeviceId, SessionId, StreamId
from polymux.device.blas import hold_blas_threads
from polymux.device.protocol import Device
from polymux.device.registry import close_all, discover
from polymux.policy import registry
from polymux.policy.jobs import registry as job_registry
from polymux.sched.engine import Engine
from polymux.sched.jobs.engine import JobEngine
from polymux.segment import NativeTable, call_native
from polymux.server.accelerator import Accelerator
from polymux.server.accounting import Accounts
from polymux.server.admin_operations import admin_operations
from polymux.server.claiming import claiming_operations
from polymux.server.client_operations import client_operations, end_session
from polymux.server.grants import Grants
from polymux.server.jobs.devices import job_cores, job_devices
from polymux.server.jobs.driver import JobDriver
from polymux.server.jobs.lease import Held
from polymux.server.jobs.operations import job_operations
from polymux.server.kernel_loading import load_directory
from polymux.server.kernels import KernelDirectory
from polymux.server.listening import Listener
from polymux.server.load_report import LoadReporter
from polymux.server.machine import Callbacks
from polymux.server.machine_setup import add_memories, make_accelerators, make_machine
from polymux.server.measurement import Measurements
from polymux.server.mover import Mover
from polymux.server.options import RuntimeOptions
from polymux.server.parts import Parts
from polymux.server.preparing import preparing_operations
from polymux.server.reactor import Client, Reactor
from polymux.server.recording import Recorders
from polymux.server.registration import registration_operations
from polymux.server.request import Operation, Request
from polymux.server.residency import Residency
from polymux.server.scheduling import Scheduler
from polymux.server.session import TaskQueue
from polymux.server.sharing_operations import sharing_operations
from polymux.server.slow_work import SlowWork
from polymux.server.status import ask, gauges
from polymux.server.tracing import Tracer
from polymux.server.transfer import Transfer

if TYPE_CHECKING:
    from polymux.metrics.endpoint import Endpoint

END_TIMEOUT_S = 5.0
"""How long the end of the runtime waits for a kernel that runs."""


class Runtime:
    """All accelerators, and the clients that share them.

    Parameters
    ----------
    options : RuntimeOptions
    stop : callable, optional
        Called when a client asks for the end (``polymux down``); without it such a request is refused.

    Raises
    ------
    ConfigError, DeviceUnavailable, InvalidRequest
        When what the options ask for is not possible; nothing stays open.
    """

    def __init__(self, options: RuntimeOptions | None = None, stop: Callable[[], None] | None = None) -> None:
        self._options = options or RuntimeOptions()
        self._stop = stop or _refuse_to_stop
        self._listeners: list[Listener] = []
        self._started = False
        self._closed = False
        with contextlib.ExitStack() as undo:
            undo.callback(hold_blas_threads())
            engine = Engine(registry.load(self._options.policy))
            job_engine = JobEngine(job_registry.load(self._options.jobs))
            natives = NativeTable()
            directory = load_directory(self._options.kernels, natives)
            devices, absent = discover(self._options.devices, native_caller=call_native)
            undo.callback(close_all, devices)
            options = self._options
            self._recorders = Recorders(options.record, options.policy, options.jobs)
            undo.callback(self._recorders.close)
            self._parts = self._assemble(devices, absent, directory, natives, engine, job_engine)
            self._tracer = self._make_tracer()
            self._endpoint = self._make_endpoint()
            self._close_devices = undo.pop_all()
        self._reactor = Reactor(_operations(self._parts, self._held), self._client_gone)

    @property
    def parts(self) -> Parts:
        """What it consists of."""
        return self._parts

    @property
    def metrics_url(self) -> str | None:
        """Where the metrics are, if they are served."""
        return None if self._endpoint is None else self._endpoint.url

    def start(self) -> Runtime:
        """Start all threads; returns the runtime itself."""
        self._started = True
        parts = self._parts
        parts.scheduler.start()
        self._mover.start()
        for accelerator in parts.accelerators:
            parts.scheduler.add(accelerator)
            accelerator.start()
        for spec in parts.machine.devices:
            streams = tuple(other.spec for other in parts.accelerators if other.device.id == spec.id)
            parts.scheduler.post(DeviceAdded(spec, streams))
        if self._tracer is not None:
            self._tracer.start()
        if self._endpoint is not None:
            self._endpoint.start()
        self._reactor.start()
        atexit.register(self._close_at_exit, os.getpid())  # a client that is collected later finds no thread
        return self

    def listen(self, path: Path) -> None:
        """Accept clients at a socket path.

        Raises
        ------
        AddressInUseError, InvalidRequest, PermissionDenied
            When the path cannot be had; see `Listener`.
        """
        listener = Listener(path)
        if self._options.allow_uids:
            listener.allow_everybody()
        self._listeners.append(listener)
        self._parts.socket = str(path)
        self._reactor.listen(listener.socket)

    def adopt(self, sock: socket.socket) -> None:
        """Serve the client at the other end of a connected SOCK_SEQPACKET socket, which is the runtime's now."""
        self._reactor.adopt(sock)

    def connect_pair(self) -> socket.socket:
        """Make a connection to this runtime for a client in the same process.

        Returns
        -------
        socket.socket
            The client's end, for ``polymux.Client(fd=sock.detach())``.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.adopt(ours)
        return theirs

    def close(self) -> bool:
        """End all sessions and threads and give the devices back; calling it again is fine.

        Returns
        -------
        bool
            False when a kernel still runs and was left behind.

        Notes
        -----
        Waits for the tasks that run, at most `END_TIMEOUT_S`; a kernel that takes longer is left to the end of the
        process, with its device.
        """
        if self._closed:
            return True
        self._closed = True
        atexit.unregister(self._close_at_exit)
        if self._endpoint is not None:
            self._endpoint.close()
        ended = self._end_threads() if self._started else True
        self._reactor.close()
        if self._tracer is not None:
            self._tracer.close()
        if ended:
            self._close_devices.close()
        else:
            self._recorders.close()
        return ended

    def __enter__(self) -> Runtime:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _end_threads(self) -> bool:
        """End every thread, clients first; False when a kernel still runs."""
        for listener in self._listeners:
            self._reactor.stop_listening(listener.socket)
            listener.close()
        self._reactor.end()
        parts = self._parts
        parts.jobs.end()
        parts.scheduler.settle(END_TIMEOUT_S)
        for accelerator in parts.accelerators:
            accelerator.end()
        ended = all(accelerator.join(END_TIMEOUT_S) for accelerator in parts.accelerators)
        ended = self._mover.end(END_TIMEOUT_S) and ended
        parts.scheduler.end()
        parts.slow.end(END_TIMEOUT_S if ended else 0.0)
        return ended

    def _close_at_exit(self, pid: int) -> None:
        if os.getpid() == pid:  # not in a fork of the process, which has none of the threads
            self.close()

    def _assemble(
        self,
        devices: list[Device],
        absent: list[AbsentDevice],
        directory: KernelDirectory,
        natives: NativeTable,
        engine: Engine,
        job_engine: JobEngine,
    ) -> Parts:
        measurements = Measurements()
        residency = Residency(self._copied)
        machine = make_machine(devices)
        add_memories(devices, machine, residency)
        reporter = LoadReporter(machine, residency, measurements)
        self._mover = Mover(residency, measurements, machine.locations, self._accelerator_of)
        accounts = Accounts()
        recorders = self._recorders
        scheduler = Scheduler(
            engine, recorders.queues.record, self._moved, self._mover.prepare, reporter.report, accounts
        )
        jobs = JobDriver(job_engine, job_devices(devices), job_cores(devices), recorders.jobs.record)
        for device, health in machine.health.items():
            health.told = _loss_of(device, scheduler, jobs)
        callbacks = Callbacks(
            scheduler.post, scheduler.ask, self._violated, accounts.ran, jobs.wanted, jobs.drained
        )
        accelerators = make_accelerators(
            devices,
            self._options.devices,
            machine,
            natives,
            residency,
            measurements,
            callbacks,
            self._options.trace is not None,
        )
        for accelerator in accelerators:
            accounts.watch(accelerator.device.id, accelerator.worker.stats)
            jobs.add_stream(accelerator.device.id, accelerator.spec.id, accelerator.worker)
        accounts.watch_jobs(jobs.holding)
        return Parts(
            self._options,
            tuple(devices),
            tuple(absent),
            machine,
            directory,
            residency,
            measurements,
            accounts,
            Grants(residency),
            scheduler,
            tuple(accelerators),
            jobs,
            SlowWork(),
            self._stop,
        )

    def _accelerator_of(self, queue: TaskQueue) -> Accelerator | None:
        return next((found for found in self._parts.accelerators if queue in found.queues()), None)

    def _make_tracer(self) -> Tracer | None:
        if self._options.trace is None:
            return None
        return Tracer(
            self._options.trace, self._parts.accelerators, self._kernel_name, partial(gauges, self._parts)
        )

    def _make_endpoint(self) -> Endpoint | None:
        if self._options.metrics is None:
            return None
        from polymux.metrics.endpoint import Endpoint  # only whoever wants metrics loads the library for them
        from polymux.metrics.exposition import Metrics

        return Endpoint(self._options.metrics, Metrics(partial(ask, self._parts), process=True))

    def _copied(self, transfer: Transfer) -> None:
        self._parts.measurements.copied(transfer)
        self._parts.accounts.copied(transfer)
        if self._tracer is not None:
            self._tracer.copied(transfer)

    def _moved(self, queue: TaskQueue, old: StreamId, new: StreamId) -> None:
        self._parts.accounts.moved(queue.id, new.rpartition("/")[0])
        if self._tracer is not None:
            self._tracer.moved(queue, old, new, queue.left_ns)

    def _held(self, held: Held) -> None:
        self._parts.accounts.held(held)
        if self._tracer is not None:
            self._tracer.held(held)

    def _kernel_name(self, queue: str, kernel_id: int) -> str:
        session = self._parts.sessions.get(SessionId(int(queue.partition(".")[0])))
        kernel = (
            session.kernels.by_id(kernel_id)
            if session is not None
            else self._parts.directory.by_id(kernel_id)
        )
        return f"kernel {kernel_id}" if kernel is None else kernel.spec.name

    def _violated(self, queue: TaskQueue, message: str) -> None:
        session = queue.session
        print(f"polymux: {session.owner.name} is dropped: queue {queue.id}: {message}", file=sys.stderr)
        self._reactor.drop_session(session)

    def _client_gone(self, client: Client) -> None:
        self._parts.slow.forget(client)
        if client.session is not None:
            end_session(self._parts, client.session)


def start_inside(devices: Sequence[str] = ()) -> tuple[int, Callable[[], None]]:
    """Start a runtime inside this process for one client.

    Parameters
    ----------
    devices : sequence of str
        Which to open; all if empty.

    Returns
    -------
    fd : int
        A connected socket for the client, which owns it.
    stop : callable
        Ends the runtime.
    """
    runtime = Runtime(RuntimeOptions(devices=tuple(devices))).start()
    return runtime.connect_pair().detach(), lambda: _close(runtime)


def _close(runtime: Runtime) -> None:
    runtime.close()


def _operations(parts: Parts, held: Callable[[Held], None]) -> dict[str, Operation]:
    operations = {
        **client_operations(parts),
        **registration_operations(parts),
        **sharing_operations(parts),
        **preparing_operations(parts),
        **job_operations(parts, held),
        **claiming_operations(parts),
        **admin_operations(parts),
    }
    allowed = frozenset((0, os.getuid(), *parts.options.allow_uids))
    return {name: _admitting(allowed, operation) for name, operation in operations.items()}


def _admitting(allowed: frozenset[int], operation: Operation) -> Operation:
    """Let an operation be asked for by allowed users only."""

    def carry_out(request: Request) -> None:
        uid = request.caller.peer.uid
        if uid not in allowed:
            raise PermissionDenied(
                f"user {uid} may not use the server of user {os.getuid()}; its operator can allow that with"
                f" allow_uids = [{uid}] in the configuration"
            )
        operation(request)

    return carry_out


def _loss_of(device: DeviceId, scheduler: Scheduler, jobs: JobDriver) -> Callable[[str], None]:
    def tell(reason: str) -> None:
        scheduler.post(DeviceLost(device, reason))
        jobs.lose(device, reason)

    return tell


def _refuse_to_stop() -> None:
    raise InvalidRequest("this runtime lives inside an application and ends with it")
