"""What applications ask for to have a kernel ready on a stream before its first task, and to let go of it.

Loading takes place in a thread of the connection: the stream goes on with what it runs.
"""

from __future__ import annotations

from time import monotonic_ns

from polymux.core.errors import InvalidRequest
from polymux.device.protocol import BuildsAhead, LaunchError
from polymux.server.accelerator import Accelerator
from polymux.server.client_operations import UnknownNameError
from polymux.server.kernels import Kernel
from polymux.server.parts import Parts
from polymux.server.request import Operation, Request
from polymux.server.session import Session
from polymux.server.version import prepare_version


def preparing_operations(parts: Parts) -> dict[str, Operation]:
    """Build the table of operations."""
    operations = _Preparing(parts)
    return {"prepare": operations.prepare, "retire": operations.retire}


class _Preparing:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def prepare(self, request: Request) -> None:
        """Make a kernel ready on a stream; answered when its next task there has nothing to wait for."""
        kernel, accelerator = self._find(request)
        self._parts.later(request, lambda: self._prepare(request, kernel, accelerator))

    def retire(self, request: Request) -> None:
        """Let go of what a stream keeps for a kernel; answered when the tasks that use it have ended."""
        session = request.session
        kernel, accelerator = self._find(request)
        api = kernel.api_for(accelerator.device.apis)
        if api in kernel.isolated:
            self._parts.later(request, lambda: self._retire_isolated(request, kernel, accelerator))
            return

        def forget() -> None:
            _forget(session, kernel, accelerator)
            request.answer()

        accelerator.at_boundary(forget)

    def _find(self, request: Request) -> tuple[Kernel, Accelerator]:
        kernels, name = request.session.kernels, request.text("name")
        accelerator = self._parts.accelerator(request.text("stream"))
        kernel = kernels.by_name(name)
        if kernel is None:
            raise UnknownNameError(f"there is no kernel {name!r}; see 'polymux kernels'")
        if kernel.api_for(accelerator.device.apis) is None:
            having = ", ".join(self._parts.machine.having(kernel)) or "no device here"
            raise InvalidRequest(
                f"kernel {name!r} has no implementation for {accelerator.device.id}, but for {having}; name a stream"
                " of a device that has one"
            )
        return kernel, accelerator

    def _prepare(self, request: Request, kernel: Kernel, accelerator: Accelerator) -> None:
        session, start_ns = request.session, monotonic_ns()
        api = kernel.api_for(accelerator.device.apis)
        assert api is not None
        try:
            if api in kernel.isolated:
                accelerator.isolation.prepare(session, kernel.serial, kernel.isolated[api])
            else:
                _, prepared = prepare_version(accelerator.device, accelerator.stream, kernel)
                if isinstance(prepared, BuildsAhead):
                    prepared.build()
        except LaunchError as error:
            raise InvalidRequest(
                f"kernel {kernel.spec.name!r} cannot be made ready on {accelerator.spec.id}: {error.message}"
            ) from error
        if session.ended or session.kernels.by_id(kernel.id) is not kernel:  # unregistered meanwhile
            for implementation in kernel.implementations.values():
                accelerator.stream.forget(implementation)
            raise InvalidRequest(f"kernel {kernel.spec.name!r} was unregistered before it was ready")
        request.answer({"elapsed_ns": monotonic_ns() - start_ns})

    def _retire_isolated(self, request: Request, kernel: Kernel, accelerator: Accelerator) -> None:
        process = request.session.workers.get(accelerator.spec.id)
        if process is not None:
            process.forget(kernel.serial)
        request.answer()


def _forget(session: Session, kernel: Kernel, accelerator: Accelerator) -> None:
    """Drop what a stream and the session's queues there know of a kernel; in the stream's own thread."""
    for queue in list(session.queues.values()):
        bound = queue.kept.get(accelerator.spec.id)
        if bound is not None:
            bound.ready.pop(kernel.id, None)
    for implementation in kernel.implementations.values():
        accelerator.stream.forget(implementation)
