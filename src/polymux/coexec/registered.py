"""Operations of a session: under each name one set of kernels, registered with the server when first used."""

from __future__ import annotations

from polymux.client import Client
from polymux.coexec.operation import ChunkKernel, Operation
from polymux.core.errors import InvalidRequest


class Registered:
    """Which operations the server knows the kernels of; used by one thread at a time.

    Parameters
    ----------
    client : Client
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._kernels: dict[str, tuple[ChunkKernel, ...]] = {}

    def add(self, operation: Operation) -> bool:
        """Register an operation's kernels; False when it was done before, or all are built in.

        Raises
        ------
        InvalidRequest
            When the name, or that of a kernel, stands for other kernels already.
        """
        known = self._kernels.get(operation.name)
        if known is not None:
            if known is not operation.kernels and known != tuple(operation.kernels):
                raise InvalidRequest(
                    f"the operation {operation.name!r} of {type(operation).__qualname__} has other kernels than the one"
                    " that this session has run under that name; give the new one, and its kernels, names of their own"
                )
            return False
        own = [kernel for kernel in operation.kernels if kernel.spec is not None]
        for kernel in own:
            self._check(operation, kernel)
        for kernel in own:
            assert kernel.spec is not None
            for implementation in kernel.implementations:
                self._client.register(kernel.spec, implementation)
        self._kernels[operation.name] = tuple(operation.kernels)
        return bool(own)

    def _check(self, operation: Operation, kernel: ChunkKernel) -> None:
        for name, kernels in self._kernels.items():
            if any(other.name == kernel.name and other != kernel for other in kernels):
                raise InvalidRequest(
                    f"the kernel {kernel.name!r} of the operation {operation.name!r} is another one than that of"
                    f" {name!r}; give it a name of its own"
                )
