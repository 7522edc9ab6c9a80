"""What the streams of most devices have in common: kernels that were prepared, and being closed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from polymux.core.device_spec import DeviceSpec
from polymux.core.errors import Closed
from polymux.core.implementation import Implementation
from polymux.core.kernel_spec import KernelSpec
from polymux.device.prepared_cache import PreparedCache
from polymux.device.protocol import Operand, Prepared, Scalars, Shapes


class PreparingStream(ABC):
    """Keeps kernels that were prepared, until it is closed; see `polymux.device.protocol.Stream`.

    Parameters
    ----------
    spec : DeviceSpec
        Of its device, named in errors.
    """

    def __init__(self, spec: DeviceSpec) -> None:
        self._spec = spec
        self._prepared = PreparedCache()
        self._closed = False

    def prepare(self, spec: KernelSpec, implementation: Implementation) -> Prepared:
        """Make a kernel ready."""
        self._check_open()
        return self._prepared.get(spec, implementation, self._prepare)

    def launch(self, prepared: Prepared, operands: Sequence[Operand], scalars: Scalars) -> Shapes | None:
        """Run a kernel."""
        self._check_open()
        return prepared.run(operands, scalars)

    def forget(self, implementation: Implementation) -> None:
        """Drop what is kept for an implementation."""
        self._prepared.forget(implementation)

    def close(self) -> None:
        """Drop what was prepared; calling it again is fine."""
        self._closed = True
        self._prepared.clear()

    @abstractmethod
    def _prepare(self, spec: KernelSpec, implementation: Implementation) -> Prepared:
        """Make a kernel ready that is not kept, or raise `LaunchError` when it is for another kind of device."""

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"a stream of {self._spec.id} is closed")
