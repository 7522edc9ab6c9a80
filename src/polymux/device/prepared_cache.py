"""What a stream has prepared, by implementation."""

from __future__ import annotations

from collections.abc import Callable

from polymux.core.implementation import Implementation
from polymux.core.kernel_spec import KernelSpec
from polymux.device.protocol import Prepared


class PreparedCache:
    """Prepared kernels of one stream.

    Notes
    -----
    Keyed by identity, not by value: a look-up must not hash a program's text. An entry keeps its implementation
    alive, so the identity stays its own. `forget` may be called from any thread.
    """

    def __init__(self) -> None:
        self._entries: dict[tuple[int, str], tuple[Implementation, Prepared]] = {}

    def get(
        self,
        spec: KernelSpec,
        implementation: Implementation,
        make: Callable[[KernelSpec, Implementation], Prepared],
    ) -> Prepared:
        """Return what was prepared before, or prepare it now."""
        key = (id(implementation), spec.name)
        entry = self._entries.get(key)
        if entry is None:
            entry = (implementation, make(spec, implementation))
            self._entries[key] = entry
        return entry[1]

    def forget(self, implementation: Implementation) -> None:
        """Drop the entries of an implementation."""
        for key in list(self._entries):
            if key[0] == id(implementation):
                self._entries.pop(key, None)

    def clear(self) -> None:
        """Drop all entries."""
        self._entries.clear()
