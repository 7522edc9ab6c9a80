"""The dispatch table: kernel name -> spec and one implementation per device API."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from polymux.core.errors import InvalidRequest
from polymux.core.implementation import Implementation
from polymux.core.kernel_spec import KernelSpec
from polymux.kernel.definition import Definition


@dataclass(slots=True)
class _Entry:
    spec: KernelSpec
    implementations: dict[str, Implementation] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)


class DispatchTable:
    """Kernels by name.

    Parameters
    ----------
    base : DispatchTable, optional
        Looked up for names that this table does not have: a session's own kernels over those of the server.
        A name of this table hides all implementations of that name in `base`.

    Notes
    -----
    Several threads may look up while one registers: an entry is replaced as a whole.
    """

    def __init__(self, base: DispatchTable | None = None) -> None:
        self._base = base
        self._entries: dict[str, _Entry] = {}

    def register(
        self, spec: KernelSpec, implementation: Implementation, *, origin: str = "this program"
    ) -> None:
        """Add an implementation of kernel `spec`.

        Parameters
        ----------
        spec : KernelSpec
            The same for all implementations of one name; the first one's `doc` is kept.
        implementation : Implementation
        origin : str
            Where it comes from, for the text of errors and for ``polymux kernels``.

        Raises
        ------
        InvalidRequest
            If the name has an implementation for that API already, or another spec.
        """
        self.add(Definition(spec, (implementation,)), origin=origin)

    def add(self, definition: Definition, *, origin: str = "this program") -> None:
        """Add all implementations of a definition, or none of them.

        Raises
        ------
        InvalidRequest
            As for `register`, or if the definition has no implementation, or two for one API.
        """
        spec = definition.spec
        if not definition.implementations:
            raise InvalidRequest(f"kernel {spec.name!r} of {origin} has no implementation; give at least one")
        known = self._entries.get(spec.name)
        entry = (
            _Entry(spec)
            if known is None
            else _Entry(known.spec, dict(known.implementations), dict(known.origins))
        )
        if not _same_parameters(entry.spec, spec):
            first = next(iter(entry.origins.values()))
            raise InvalidRequest(
                f"kernel {spec.name!r} of {origin} takes {_signature(spec)}, but {first} has registered that name"
                f" with {_signature(entry.spec)}; use the same parameters or another name"
            )
        for implementation in definition.implementations:
            api = implementation.api
            if api in entry.implementations:
                raise InvalidRequest(
                    f"kernel {spec.name!r} of {origin} has an implementation for {api!r}, but {entry.origins[api]}"
                    " has registered one already; remove one of them or use another name"
                )
            entry.implementations[api] = implementation
            entry.origins[api] = origin
        self._entries[spec.name] = entry

    def remove(self, name: str) -> None:
        """Forget a kernel of this table; one of the same name in `base` shows again.

        Raises
        ------
        InvalidRequest
            If this table has no such kernel.
        """
        if self._entries.pop(name, None) is None:
            raise InvalidRequest(f"kernel {name!r} is not registered here{_list(self._entries)}")

    def spec(self, name: str) -> KernelSpec:
        """What the kernel takes.

        Raises
        ------
        InvalidRequest
            If there is no such kernel; the message names similar ones.
        """
        return self._entry(name).spec

    def implementations(self, name: str) -> dict[str, Implementation]:
        """Implementation by device API (a copy).

        Raises
        ------
        InvalidRequest
            If there is no such kernel.
        """
        return dict(self._entry(name).implementations)

    def apis(self, name: str) -> tuple[str, ...]:
        """Device APIs that have an implementation, in the order of registration.

        Raises
        ------
        InvalidRequest
            If there is no such kernel.
        """
        return tuple(self._entry(name).implementations)

    def origins(self, name: str) -> dict[str, str]:
        """Where each API's implementation comes from (a copy).

        Raises
        ------
        InvalidRequest
            If there is no such kernel.
        """
        return dict(self._entry(name).origins)

    def names(self) -> tuple[str, ...]:
        """All kernels, those of `base` included, sorted."""
        own = set(self._entries)
        return tuple(sorted(own if self._base is None else own.union(self._base.names())))

    def __contains__(self, name: object) -> bool:
        return name in self._entries or (self._base is not None and name in self._base)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self.names())

    def _entry(self, name: str) -> _Entry:
        table: DispatchTable | None = self
        while table is not None:
            entry = table._entries.get(name)
            if entry is not None:
                return entry
            table = table._base
        raise InvalidRequest(f"kernel {name!r} is not registered{_list(self.names(), name)}")


def _same_parameters(one: KernelSpec, other: KernelSpec) -> bool:
    return (one.inputs, one.outputs, one.scalars, one.variadic) == (
        other.inputs,
        other.outputs,
        other.scalars,
        other.variadic,
    )


def _signature(spec: KernelSpec) -> str:
    if spec.variadic:
        return "any buffers"
    parts = [
        f"{param.name}: {'|'.join(dtype.name_short for dtype in param.dtypes) or 'any'}"
        for param in (*spec.inputs, *spec.outputs)
    ]
    parts += [f"{param.name}={param.dtype.name_short}" for param in spec.scalars]
    return f"({', '.join(parts[: len(spec.inputs)])}) -> ({', '.join(parts[len(spec.inputs) :])})"


def _list(names: Iterable[str], wanted: str = "") -> str:
    known = sorted(names)
    close = difflib.get_close_matches(wanted, known, n=3)
    if close:
        return f"; did you mean {' or '.join(close)}?"
    return f"; there are {', '.join(known)}" if known else "; there is none"
