"""A device that exists in a TOML file only (`polymux.device.simulated_model` has the keys).

It computes real results with the host's cores, and every copy and launch takes at least the time that the file says:
it never computes faster than told, and slower only where the host does. Its memory is the host's, up to the stated
capacity, and it fails when the file says so.

Devices are numbered in the order in which they are asked for: ``simulated:0``, ``simulated:1``.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from polymux.core.device_spec import DeviceSpec, Share
from polymux.core.errors import Closed, InvalidRequest
from polymux.core.ids import DeviceId
from polymux.core.implementation import Implementation
from polymux.core.kernel_spec import KernelSpec
from polymux.core.status import TaskStatus
from polymux.device.cores import allowed_cores
from polymux.device.cpu import CpuDevice, CpuStream, cpu_apis
from polymux.device.prepared_cache import PreparedCache
from polymux.device.protocol import (
    Device,
    Launch,
    LaunchError,
    NativeCaller,
    Operand,
    Prepared,
    Scalars,
    Shapes,
)
from polymux.device.request import DeviceRequest
from polymux.device.simulated_faults import Faults
from polymux.device.simulated_model import SimulatedModel, read_model
from polymux.device.surroundings import Found, Surroundings
from polymux.device.timeline import Timeline

_INTO, _OUT_OF = 0, 1
_LONGEST_SLEEP_S = 3600.0


class WallClock:
    """The clock that simulated devices live by."""

    def now_ns(self) -> int:
        """Return the time of CLOCK_MONOTONIC."""
        return time.monotonic_ns()

    def sleep_until(self, end_ns: int) -> None:
        """Return no earlier than `end_ns`."""
        while (left_ns := end_ns - time.monotonic_ns()) > 0:
            time.sleep(min(left_ns / 1e9, _LONGEST_SLEEP_S))


class SimulatedDevice:
    """A described device.

    Parameters
    ----------
    spec : DeviceSpec
    model : SimulatedModel
    native_caller : NativeCaller, optional
        Runs native kernels.
    clock : WallClock, optional
    """

    def __init__(
        self,
        spec: DeviceSpec,
        model: SimulatedModel,
        native_caller: NativeCaller | None = None,
        clock: WallClock | None = None,
    ) -> None:
        self._spec = spec
        self._clock = clock or WallClock()
        self._model = model
        self._host = CpuDevice(spec, allowed_cores(), native_caller)
        self._units = Timeline(model.units)
        self._bus = Timeline(2)
        self._faults = Faults(spec.id, model.faults)
        self._streams: weakref.WeakSet[SimulatedStream] = weakref.WeakSet()
        self._closed = False

    @property
    def spec(self) -> DeviceSpec:
        """Its properties."""
        return self._spec

    def open_stream(self, share: Share) -> SimulatedStream:
        """Open a stream on some of the units; see `polymux.device.protocol.Device`."""
        if self._closed:
            raise Closed(f"{self._spec.id} is closed")
        units = tuple(range(self._model.units)) if share.units is None else share.units
        if not units or len(set(units)) != len(units) or not all(0 <= u < self._model.units for u in units):
            raise InvalidRequest(
                f"{self._spec.id} has no share of units {share.units}; name one or more of 0 to"
                f" {self._model.units - 1}, each once"
            )
        host = self._host.open_stream(Share())
        stream = SimulatedStream(
            share, units, self._model, host, self._units, self._bus, self._clock, self._faults
        )
        self._streams.add(stream)
        return stream

    def allocate(self, nbytes: int) -> NDArray[np.uint8]:
        """Take some of the stated memory."""
        self._faults.allocate(nbytes)
        return self._host.allocate(nbytes)

    def free(self, memory: NDArray[np.uint8]) -> None:
        """Give it back."""
        self._host.free(memory)

    def host_bytes(self, memory: NDArray[np.uint8]) -> None:
        """Give none: like a card's, its memory is reached over its bus only."""

    def is_peer(self, other: Device) -> bool:
        """Tell other simulated devices to be peers, with the slower bus of the two between them."""
        return isinstance(other, SimulatedDevice)

    def reserve_copy_out(self, nbytes: int) -> int:
        """Take the bus for a copy out of the device; returns when it ends, of the device's clock."""
        self._faults.copy()
        duration_ns = self._model.transfer.duration_ns(nbytes)
        return self._bus.reserve((_OUT_OF,), self._clock.now_ns(), duration_ns)

    def forget(self, implementation: Implementation) -> None:
        """Drop what the streams keep for an implementation."""
        for stream in list(self._streams):
            stream.forget(implementation)

    def counters(self) -> dict[str, int]:
        """Nothing is counted."""
        return {}

    def close(self) -> None:
        """Close the streams; calling it again is fine."""
        self._closed = True
        for stream in list(self._streams):
            stream.close()
        self._host.close()


class SimulatedStream:
    """A queue of a `SimulatedDevice`; see `polymux.device.protocol.Stream`."""

    def __init__(
        self,
        share: Share,
        units: tuple[int, ...],
        model: SimulatedModel,
        host: CpuStream,
        timeline: Timeline,
        bus: Timeline,
        clock: WallClock,
        faults: Faults,
    ) -> None:
        self.share = share
        self._units = units
        self._model = model
        self._host = host
        self._timeline = timeline
        self._bus = bus
        self._clock = clock
        self._faults = faults
        self._prepared = PreparedCache()

    def bind_thread(self) -> None:
        """Let the calling thread compute on the host's cores."""
        self._host.bind_thread()

    def copy_in(self, memory: NDArray[np.uint8], host: NDArray[np.uint8], offset: int = 0) -> None:
        """Copy from the host at the speed of the bus."""
        end_ns = self._reserve_copy(_INTO, host.nbytes)
        self._host.copy_in(memory, host, offset)
        self._clock.sleep_until(end_ns)

    def copy_out(self, memory: NDArray[np.uint8], host: NDArray[np.uint8], offset: int = 0) -> None:
        """Copy to the host at the speed of the bus."""
        end_ns = self._reserve_copy(_OUT_OF, host.nbytes)
        self._host.copy_out(memory, host, offset)
        self._clock.sleep_until(end_ns)

    def copy_peer(
        self, memory: NDArray[np.uint8], peer: Device, source: NDArray[np.uint8], nbytes: int
    ) -> None:
        """Copy from another simulated device's memory at the speed of the slower bus."""
        if not isinstance(peer, SimulatedDevice):
            raise InvalidRequest(f"{peer.spec.id} is no simulated device and so no peer of one")
        end_ns = max(self._reserve_copy(_INTO, nbytes), peer.reserve_copy_out(nbytes))
        self._host.copy_in(memory, source[:nbytes])
        self._clock.sleep_until(end_ns)

    def prepare(self, spec: KernelSpec, implementation: Implementation) -> Prepared:
        """Load a kernel for the host's cores."""
        return self._prepared.get(spec, implementation, self._prepare)

    def launch(self, prepared: Prepared, operands: Sequence[Operand], scalars: Scalars) -> Shapes | None:
        """Run a kernel; it ends no earlier than the model says."""
        return self.start(prepared, operands, scalars).wait()

    def start(self, prepared: Prepared, operands: Sequence[Operand], scalars: Scalars) -> Launch:
        """Compute a kernel at once; its launch ends no earlier than the model says."""
        assert isinstance(prepared, PreparedSimulated), "it was prepared by this stream"
        return prepared.start(operands, scalars)

    def trim(self) -> None:
        """Do nothing: a kernel here needs no memory besides its operands."""

    def start_timed(
        self, spec: KernelSpec, host: Prepared, operands: Sequence[Operand], scalars: Scalars
    ) -> SimulatedLaunch:
        """Compute a prepared kernel of the host within the time that the model gives it."""
        duration_ns = self._duration_ns(spec, operands, scalars)
        hang_ns, failure = self._faults.launch(spec.name)
        end_ns = self._timeline.reserve(self._units, self._clock.now_ns(), duration_ns + hang_ns)
        shapes = None if failure is not None else self._host.launch(host, operands, scalars)
        return SimulatedLaunch(self._clock, end_ns, shapes, failure)

    def forget(self, implementation: Implementation) -> None:
        """Drop what is kept for an implementation."""
        self._prepared.forget(implementation)
        self._host.forget(implementation)

    def close(self) -> None:
        """End the host's threads; calling it again is fine."""
        self._prepared.clear()
        self._host.close()

    def _prepare(self, spec: KernelSpec, implementation: Implementation) -> Prepared:
        return PreparedSimulated(spec, self._host.prepare(spec, implementation), self)

    def _reserve_copy(self, direction: int, nbytes: int) -> int:
        self._faults.copy()
        duration_ns = self._model.transfer.duration_ns(nbytes)
        return self._bus.reserve((direction,), self._clock.now_ns(), duration_ns)

    def _duration_ns(self, spec: KernelSpec, operands: Sequence[Operand], scalars: Scalars) -> int:
        values: dict[str, int | float | Sequence[int]] = dict(scalars)
        for param, operand in zip((*spec.inputs, *spec.outputs), operands, strict=False):
            values[param.name] = operand.view.shape
        nbytes = sum({operand.view.slot: operand.view.nbytes for operand in operands}.values())
        fraction = len(self._units) / self._model.units
        try:
            return self._model.of_kernel(spec.name).duration_ns(nbytes, values, fraction)
        except ValueError as error:
            message = f"the time that it takes on this simulated device: {error}"
            raise LaunchError(TaskStatus.DEVICE_FAILED, message) from error


class PreparedSimulated:
    """A kernel prepared for the host, timed by a stream's model."""

    def __init__(self, spec: KernelSpec, host: Prepared, stream: SimulatedStream) -> None:
        self._spec = spec
        self._host = host
        self._stream = stream

    def start(self, operands: Sequence[Operand], scalars: Scalars) -> SimulatedLaunch:
        """Compute; the launch ends no earlier than the model says."""
        return self._stream.start_timed(self._spec, self._host, operands, scalars)

    def run(self, operands: Sequence[Operand], scalars: Scalars) -> Shapes | None:
        """Compute, and end no earlier than the model says."""
        return self.start(operands, scalars).wait()


class SimulatedLaunch:
    """A kernel that has been computed and ends when the model says; see `polymux.device.protocol.Launch`."""

    def __init__(
        self, clock: WallClock, end_ns: int, shapes: Shapes | None, failure: LaunchError | None
    ) -> None:
        self._clock = clock
        self._end_ns = end_ns
        self._shapes = shapes
        self._failure = failure

    def ended(self) -> bool:
        """Whether its time has come."""
        return self._clock.now_ns() >= self._end_ns

    def wait(self) -> Shapes | None:
        """Wait until its time has come."""
        self._clock.sleep_until(self._end_ns)
        if self._failure is not None:
            raise self._failure
        return self._shapes


def open_devices(request: DeviceRequest, surroundings: Surroundings) -> Found:
    """Open the device of a string ``simulated=FILE.toml``.

    Raises
    ------
    ConfigError
        If the file is missing or describes no device.
    """
    request.check_options(("streams", "shares", "memory_nbytes", "launch_ahead"))
    if not request.file:
        raise request.error(request.text, "name the file that describes the device: simulated=FILE.toml")
    model = read_model(request.file)
    streams = request.streams(model.streams, model.units)
    spec = DeviceSpec(
        id=DeviceId(f"simulated:{surroundings.next_index}"),
        api="simulated",
        name=model.name,
        memory_nbytes=request.memory_nbytes(model.memory_nbytes),
        memory="own",
        units=model.units,
        streams=streams,
        apis=cpu_apis(),
        partitionable=model.units > 1,
        details=f"described by {request.file}; computed on the host's cores",
        shares=request.shares(model.units, streams),
        launch_ahead=request.launch_ahead(),
    )
    return Found([SimulatedDevice(spec, model, surroundings.native_caller)])
