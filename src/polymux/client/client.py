"""The connection of an application to its runtime."""

from __future__ import annotations

import json
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from polymux.client.awaiting import Notifier
from polymux.client.buffer import Buffer
from polymux.client.lease import Lease, lease_fields
from polymux.client.queue import OnFull, Queue
from polymux.client.registration import registration_fields
from polymux.core.errors import InvalidRequest, UnknownKernel
from polymux.core.implementation import Implementation
from polymux.core.kernel_spec import KernelSpec
from polymux.segment import Client as CoreClient


class Client(CoreClient):
    """A connection to a server; `polymux.connect` makes one.

    Parameters
    ----------
    socket : str, optional
        Path of the server's socket; the default one of this user if None.
    fd : int, optional
        A connected socket instead, which the client owns from then on.
    name : str, optional
        Shown to the operator; the program's name by default.
    segment_nbytes : int, optional
        Size of the memory shared with the server, in bytes; the server's default if None. Pages are taken as they
        are touched.
    weight : float
        What this application gets of a busy stream against others of the same priority, as a multiple of a normal
        one: 0.01 to 100.
    on_close : callable, optional
        Called once when the client is closed.

    Raises
    ------
    NoServer
        When nothing listens at the socket.
    ProtocolMismatch
        When the server is of another version.
    InvalidRequest
        For a weight out of range.
    """

    def __init__(
        self,
        socket: str | None = None,
        *,
        fd: int = -1,
        name: str | None = None,
        segment_nbytes: int | None = None,
        weight: float = 1.0,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        self._specs: dict[str, KernelSpec] = {}
        self._on_close = on_close
        notifier = Notifier()
        program = name or f"{Path(sys.argv[0] or sys.executable).name}[{os.getpid()}]"
        percent = percent_of(weight)
        super().__init__(
            socket or "", fd, program, segment_nbytes or 0, percent, _resolver_of(self), notifier
        )
        notifier.attach(self)
        self.name = program

    def queue(
        self,
        name: str | None = None,
        *,
        priority: int = 0,
        device: str | None = None,
        stream: str | None = None,
        capacity: int = 1024,
        on_full: OnFull = "wait",
        memory_nbytes: int = 0,
    ) -> Queue:
        """Open a task queue; the parameters are those of `Queue`.

        Raises
        ------
        InvalidRequest
            For a device or stream that the server does not have, or a capacity that is no power of two from 16 to
            65536.
        """
        return Queue(
            self,
            name,
            priority=priority,
            device=device,
            stream=stream,
            capacity=capacity,
            on_full=on_full,
            memory_nbytes=memory_nbytes,
        )

    def lease(
        self,
        name: str | None = None,
        *,
        priority: int | None = None,
        weight: float | None = None,
        memory_nbytes: int = 0,
        peak_nbytes: int = 0,
        device: str | Sequence[str] | None = None,
        levels: Sequence[str] | None = None,
        boundary_ns: int = 0,
        pid: int | None = None,
    ) -> Lease:
        """Open a lease: this process is a job then, which uses a device by itself while nobody else needs it.

        Parameters
        ----------
        name : str, optional
            Shown to the operator; the client's by default.
        priority : int, optional
            Larger comes first; 0 by default. Tasks of queues with the same priority come before jobs.
        weight : float, optional
            Part of the device time relative to jobs of the same priority, 0.01 to 100; 1 by default.
        memory_nbytes : int
            Memory that it keeps between runs: weights, the state of an optimizer.
        peak_nbytes : int
            Memory that it needs while it runs.
        device : str or sequence of str, optional
            Where it may run; by default wherever the host's cores are.
        levels : sequence of str, optional
            How the device may be taken away: ``"step"`` at the end of a run, ``"boundary"`` at its next look at the
            lease, ``"launches"`` as that with a bounded number of launches in flight, ``"idle"`` the operating system
            lets it run only on idle cores, ``"stop"`` the operating system stops it at once. The server chooses the
            cheapest that is in time. By default all but ``"launches"``.
        boundary_ns : int
            Longest time between two looks at the lease; 0: not known.
        pid : int, optional
            Process that is held up at ``"idle"`` and ``"stop"``, with its process group if it leads one; this one by
            default.

        Returns
        -------
        Lease

        Raises
        ------
        InvalidRequest
            When the job fits nowhere, with the sizes, and for values that cannot be.
        PermissionDenied
            When the process is not of this user, or the server may not stop it.

        Notes
        -----
        Under ``polymux run`` the lease stands for the one that holds the process, and has its priority, weight and
        devices unless others are given.
        """
        fields = lease_fields(
            name or self.name,
            priority=priority,
            weight=None if weight is None else percent_of(weight),
            memory_nbytes=memory_nbytes,
            peak_nbytes=peak_nbytes,
            device=device,
            levels=levels,
            boundary_ns=boundary_ns,
            pid=pid,
        )
        return Lease(self, name or self.name, fields)

    def import_buffer(self, token: str) -> Buffer:
        """Map a buffer that another application has exported to this one's eyes.

        Raises
        ------
        PermissionDenied, InvalidRequest
            When the token is unknown, revoked, or its owner is gone.
        """
        return Buffer(self, token)

    def kernel_spec(self, name: str) -> KernelSpec:
        """What a kernel takes.

        Raises
        ------
        UnknownKernel
            With the names that come close.
        """
        if name not in self._specs:
            try:
                reply, _ = self.request("kernel", {"name": name})
            except UnknownKernel as error:
                raise UnknownKernel(error.code, self.name, 0, name, error.message) from None
            self._define(name, KernelSpec.from_text(reply["spec"]), int(reply["kernel_id"]))
        return self._specs[name]

    def register(
        self,
        spec: KernelSpec | None,
        implementation: Implementation,
        *,
        name: str | None = None,
        isolate: bool = True,
    ) -> KernelSpec:
        """Give the server a kernel of this application's own, visible to this application alone.

        Parameters
        ----------
        spec : KernelSpec or None
            What it takes; None for an ONNX model, whose own inputs and outputs count.
        implementation : PythonFunction, NativeFunction, OpenCLSource, OpenCLBinary, OnnxModel or another one
        name : str, optional
            The kernel's name; needed when `spec` is None.
        isolate : bool
            True: it runs in a worker process of this application, so that a crash is an error of its task and
            nobody else's trouble. False: in the server itself, which only the server's own user may ask for.

        Returns
        -------
        KernelSpec
        """
        known_as = name or (spec.name if spec is not None else None)
        if known_as is None:
            raise InvalidRequest("a kernel without a spec needs a name: register(None, model, name=...)")
        reply, _ = self.request("register", registration_fields(known_as, spec, implementation, isolate))
        self._define(known_as, KernelSpec.from_text(reply["spec"]), int(reply["kernel_id"]))
        return self._specs[known_as]

    def unregister(self, name: str) -> None:
        """Take back a kernel that this application has registered."""
        self.request("unregister", {"name": name})
        self._specs.pop(name, None)

    def prepare(self, kernel: str, stream: str) -> None:
        """Make a kernel ready on a stream, which goes on with what it runs: its next task there waits for nothing.

        Parameters
        ----------
        kernel : str
            Its name: a model that is loaded, a program that is built, a worker process that is started.
        stream : str
            As ``"cpu:0/1"``; `status` lists them.

        Raises
        ------
        UnknownKernel
            With the names that come close.
        InvalidRequest
            For a stream that the server does not have, a device without an implementation, or a kernel that cannot be
            loaded.

        Notes
        -----
        Takes as long as loading takes; other requests of this client that take long wait for it, tasks do not. It stays
        ready until `retire` or `unregister`, whoever's queues come and go.
        """
        self.kernel_spec(kernel)
        self.request("prepare", {"name": kernel, "stream": stream})

    def retire(self, kernel: str, stream: str) -> None:
        """Have a stream let go of a kernel, and give back what that takes; the opposite of `prepare`.

        Waits for the tasks that run. A later task loads the kernel anew, and waits for that. Parameters and errors are
        those of `prepare`.
        """
        self.kernel_spec(kernel)
        self.request("retire", {"name": kernel, "stream": stream})

    def claim(self, devices: Iterable[str]) -> None:
        """Schedule requests on these devices by oneself, as nobody else may until this client is closed.

        Parameters
        ----------
        devices : iterable of str
            As ``"cpu:0"``; they replace those of an earlier call.

        Raises
        ------
        InvalidRequest
            When another client has claimed one of them, with its name and process; nothing is claimed then.
        """
        self.request("claim", {"devices": ",".join(devices)})

    def status(self) -> dict[str, Any]:
        """Describe the server now: devices and their streams, applications, queues, accounts.

        Returns
        -------
        dict
            What ``polymux status --json`` prints. Each of ``["devices"]`` lists its ``["streams"]`` with their ``id``
            (for ``queue(stream=...)``), their ``units`` by number, and whether they are ``pinned_only``: a part of
            another stream, which gets no queue that is not pinned to it.
        """
        reply, _ = self.request("status")
        state: dict[str, Any] = json.loads(reply["json"])
        return state

    def request(
        self, verb: str, fields: Mapping[str, str] | None = None, fds: Sequence[int] = ()
    ) -> tuple[dict[str, str], list[int]]:
        """Send a control request (docs: the control protocol) and wait for the reply.

        Returns
        -------
        fields : dict
        fds : list of int
            Descriptors that came with it; the caller closes them.
        """
        return super().request(verb, dict(fields or {}), list(fds))

    def close(self) -> None:
        """End the connection; closing twice is fine. Views of buffers stay readable."""
        if not self.closed:
            super().close()
            if self._on_close is not None:
                self._on_close()

    def _define(self, name: str, spec: KernelSpec, kernel_id: int) -> None:
        masks = [sum(1 << int(dtype) for dtype in param.dtypes) for param in (*spec.inputs, *spec.outputs)]
        required = {param.name for param in spec.scalars if param.default is None}
        scalars = [(scalar, int(dtype), offset, scalar in required) for scalar, dtype, offset in spec.layout]
        placeholders = {param.name: 0 for param in spec.scalars if param.default is None}
        self._specs[name] = spec
        self.define_kernel(
            name,
            kernel_id,
            len(spec.inputs),
            len(spec.outputs),
            spec.variadic,
            masks,
            scalars,
            spec.pack(placeholders),
        )

    def _resolve(self, name: str, scalars: Mapping[str, object] | None = None) -> object:
        """Called by ``submit``: without scalars to learn a kernel, with them to pack what it cannot itself."""
        spec = self.kernel_spec(name)
        return None if scalars is None else spec.pack(scalars)

    def __repr__(self) -> str:
        if not hasattr(self, "name"):
            return "<Client: could not connect>"
        return f"<Client {self.name}: {'closed' if self.closed else f'session {self.session}'}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def percent_of(weight: float) -> int:
    """Turn a weight into per cent of a normal one.

    Raises
    ------
    InvalidRequest
        When it is not from 0.01 to 100.
    """
    if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0.01 <= weight <= 100:
        raise InvalidRequest(f"weight={weight!r:.40}: give a number from 0.01 to 100; 1.0 is normal")
    return round(weight * 100)


def _resolver_of(client: Client) -> Callable[..., Any]:
    """Let the C++ side call the client without keeping it alive."""
    reference = weakref.ref(client)

    def resolve(*args: Any) -> object:
        found = reference()
        if found is None:
            raise RuntimeError("the client is gone")
        return found._resolve(*args)

    return resolve
