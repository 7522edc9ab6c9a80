"""Which kernels there are for whom, by name and by number."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count

from polymux.core.errors import InvalidRequest
from polymux.core.implementation import Implementation, OnnxModel
from polymux.core.kernel_spec import KernelSpec

FIRST_ID = 16
"""Smaller numbers are the runtime's own."""
BARRIER = 0
TO_HOST = 1
RESERVED = {BARRIER: "barrier", TO_HOST: "to_host"}
MAX_PRIVATE = 1024
"""Kernels that one session may register."""
MAX_PRIVATE_NBYTES = 256 << 20
"""Size of their code and data together."""


@dataclass(frozen=True, slots=True)
class Registration:
    """What a worker process needs to make an application's implementation.

    Parameters
    ----------
    spec : KernelSpec
    pickled : bytes
        The implementation, which the server never unpickles.
    model : OnnxModel, optional
        In its place.
    sys_path, cwd
        Of the application, so that what it imports is found.
    """

    spec: KernelSpec
    pickled: bytes = b""
    model: OnnxModel | None = None
    sys_path: tuple[str, ...] = ()
    cwd: str = ""


@dataclass(frozen=True, slots=True)
class OperatorKernel:
    """What a worker process needs to make one of the operator's own implementations."""

    spec: KernelSpec
    api: str
    files: tuple[str, ...]


Isolated = Registration | OperatorKernel


@dataclass(slots=True, eq=False)
class Kernel:
    """One kernel as accelerator threads use it.

    Parameters
    ----------
    id : int
        Its number in task descriptors; never used again for another one.
    spec : KernelSpec
    implementations : mapping of str to Implementation
        By API; those that run in the server.
    isolated : mapping of str to Isolated
        By API; those that run in a worker process of the session.
    """

    id: int
    spec: KernelSpec
    implementations: Mapping[str, Implementation] = field(default_factory=dict)
    isolated: Mapping[str, Isolated] = field(default_factory=dict)
    origin: str = ""
    """Where it comes from, for people."""
    serial: int = field(default_factory=count().__next__)
    """Tells apart what was registered under one number one after the other."""

    @property
    def apis(self) -> frozenset[str]:
        """Device APIs for which there is an implementation."""
        return frozenset(self.implementations) | frozenset(self.isolated)

    def api_for(self, apis: Iterable[str]) -> str | None:
        """Choose the first of a device's APIs that has an implementation."""
        return next((api for api in apis if api in self.implementations or api in self.isolated), None)


class KernelDirectory:
    """The operator's and built-in kernels, visible to every session, and where numbers come from."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next_id = FIRST_ID
        self._by_name: dict[str, Kernel] = {}
        self._by_id: dict[int, Kernel] = {}

    def new_id(self) -> int:
        """Take the next number."""
        with self._lock:
            self._next_id += 1
            return self._next_id - 1

    def add(self, kernel: Kernel) -> None:
        """Make a kernel visible to every session."""
        with self._lock:
            self._by_name[kernel.spec.name] = kernel
            self._by_id[kernel.id] = kernel

    def by_name(self, name: str) -> Kernel | None:
        """Look a name up."""
        return self._by_name.get(name)

    def by_id(self, kernel_id: int) -> Kernel | None:
        """Look a number up."""
        return self._by_id.get(kernel_id)

    def all(self) -> list[Kernel]:
        """List the kernels by name."""
        return [self._by_name[name] for name in sorted(self._by_name)]


class SessionKernels:
    """The kernels that one session sees: its own, then everybody's. A name of its own hides the others.

    Notes
    -----
    Changed by the I/O thread, read by accelerator threads; `version` tells them that what they keep is old.
    """

    def __init__(self, directory: KernelDirectory) -> None:
        self._directory = directory
        self._by_name: dict[str, Kernel] = {}
        self._by_id: dict[int, Kernel] = {}
        self.version = 0

    def register(
        self,
        spec: KernelSpec,
        implementations: Mapping[str, Implementation],
        isolated: Mapping[str, Isolated],
    ) -> Kernel:
        """Add implementations under a name, or replace those for the same APIs.

        Returns
        -------
        Kernel
            With the number that the name had before in this session, if it had one.

        Raises
        ------
        InvalidRequest
            If the session has too many kernels, or one of that name with other parameters.
        """
        before = self._by_name.get(spec.name)
        if before is None and len(self._by_name) >= MAX_PRIVATE:
            raise InvalidRequest(
                f"this session has {MAX_PRIVATE} kernels of its own; unregister one before {spec.name!r}"
            )
        others = [kernel for kernel in self._by_name.values() if kernel is not before]
        nbytes = sum(_nbytes(isolated) for isolated in [isolated, *(other.isolated for other in others)])
        if nbytes > MAX_PRIVATE_NBYTES:
            raise InvalidRequest(
                f"with {spec.name!r} the kernels of this session have {nbytes} bytes of code and data; at most"
                f" {MAX_PRIVATE_NBYTES} are kept: give data in buffers, not in the function"
            )
        if before is not None and _parameters(before.spec) != _parameters(spec):
            raise InvalidRequest(
                f"kernel {spec.name!r} is registered in this session with other parameters; unregister it first"
            )
        kernel = Kernel(before.id if before else self._directory.new_id(), spec)
        new = {*implementations, *isolated}
        if before is not None:
            kernel.implementations = {a: i for a, i in before.implementations.items() if a not in new}
            kernel.isolated = {a: i for a, i in before.isolated.items() if a not in new}
        kernel.implementations = {**kernel.implementations, **implementations}
        kernel.isolated = {**kernel.isolated, **isolated}
        self._by_name[spec.name] = kernel
        self._by_id[kernel.id] = kernel
        self.version += 1
        return kernel

    def remove(self, name: str) -> Kernel:
        """Unregister a kernel.

        Raises
        ------
        InvalidRequest
            If the session has none of that name.
        """
        kernel = self._by_name.pop(name, None)
        if kernel is None:
            own = ", ".join(sorted(self._by_name)) or "none"
            raise InvalidRequest(f"this session has registered no kernel {name!r}; its own are: {own}")
        self._by_id.pop(kernel.id, None)
        self.version += 1
        return kernel

    def by_name(self, name: str) -> Kernel | None:
        """Look a name up."""
        return self._by_name.get(name) or self._directory.by_name(name)

    def by_id(self, kernel_id: int) -> Kernel | None:
        """Look a number up; those of other sessions are unknown here."""
        return self._by_id.get(kernel_id) or self._directory.by_id(kernel_id)

    def own(self) -> list[Kernel]:
        """List the session's own kernels."""
        return list(self._by_name.values())

    def names_like(self, name: str) -> list[str]:
        """Names that may have been meant, for an error message."""
        known = {kernel.spec.name for kernel in (*self._directory.all(), *self._by_name.values())}
        return sorted(other for other in known if _resemble(name, other))[:5]


def _nbytes(isolated: Mapping[str, Isolated]) -> int:
    return sum(len(source.pickled) for source in isolated.values() if isinstance(source, Registration))


def _parameters(spec: KernelSpec) -> tuple[object, ...]:
    return (spec.inputs, spec.outputs, spec.scalars, spec.variadic)


def _resemble(name: str, other: str) -> bool:
    a, b = name.lower(), other.lower()
    return a in b or b in a or (len(a) > 2 and a[:3] == b[:3])
