"""Accelerators that Polymux reaches through an execution provider of onnxruntime only: they run models.

``onnxruntime:cuda`` is the first accelerator of that provider, ``onnxruntime:cuda:1`` the second. The provider copies
inputs there and outputs back; weights stay there.
"""

from __future__ import annotations

import weakref

import numpy as np
from numpy.typing import NDArray

from polymux.core.device_spec import DeviceSpec, Share
from polymux.core.errors import Closed, DeviceUnavailable, InvalidRequest
from polymux.core.ids import DeviceId
from polymux.core.implementation import Implementation, ProviderModel
from polymux.core.kernel_spec import KernelSpec
from polymux.core.status import TaskStatus
from polymux.device import onnx_providers
from polymux.device.onnx_model import import_onnxruntime
from polymux.device.onnx_providers import Provider
from polymux.device.onnx_run import PreparedOnnx
from polymux.device.onnx_session import OnnxSessions
from polymux.device.own_memory import host_memory_nbytes
from polymux.device.preparing_stream import PreparingStream
from polymux.device.protocol import Device, LaunchError, Memory, Prepared
from polymux.device.request import DeviceRequest
from polymux.device.surroundings import Found, Surroundings

_OPTIONS = ("streams",)
_ONE_THREAD = (0,)
"""What the provider leaves to the processor runs in the stream's own thread."""


class OnnxDevice:
    """An accelerator behind an execution provider.

    Parameters
    ----------
    spec : DeviceSpec
    number : int
        Of the accelerator, as its driver counts them.
    """

    def __init__(self, spec: DeviceSpec, number: int) -> None:
        self._spec = spec
        self._number = number
        self._sessions = OnnxSessions()
        self._streams: weakref.WeakSet[OnnxStream] = weakref.WeakSet()
        self._closed = False

    @property
    def spec(self) -> DeviceSpec:
        """Its properties."""
        return self._spec

    def open_stream(self, share: Share) -> OnnxStream:
        """Open a stream on the whole of it; see `polymux.device.protocol.Device`."""
        if self._closed:
            raise Closed(f"{self._spec.id} is closed")
        if share.units not in (None, (0,)):
            raise InvalidRequest(
                f"{self._spec.id} has no share of units {share.units}; it cannot be divided, so name 0 or none"
            )
        stream = OnnxStream(self._spec, share, self._number, self._sessions)
        self._streams.add(stream)
        return stream

    def allocate(self, nbytes: int) -> Memory:
        """Refuse: its memory is the provider's."""
        raise InvalidRequest(
            f"{self._spec.id} works on host memory; its own is not for {nbytes} bytes of buffers"
        )

    def free(self, memory: Memory) -> None:  # noqa: ARG002
        """Refuse: nothing was allocated."""
        raise InvalidRequest(f"{self._spec.id} works on host memory and has none of its own for buffers")

    def host_bytes(self, memory: Memory) -> NDArray[np.uint8] | None:  # noqa: ARG002
        """Nothing lies there."""
        return None

    def is_peer(self, other: Device) -> bool:  # noqa: ARG002
        """Tell no other device to be a peer."""
        return False

    def forget(self, implementation: Implementation) -> None:
        """Drop what the streams keep for an implementation."""
        for stream in list(self._streams):
            stream.forget(implementation)

    def counters(self) -> dict[str, int]:
        """Count the sessions of models."""
        return {"onnx_sessions": self._sessions.counters()["onnx_sessions"]}

    def close(self) -> None:
        """Close the streams; calling it again is fine."""
        self._closed = True
        for stream in list(self._streams):
            stream.close()


class OnnxStream(PreparingStream):
    """A thread that hands models to the provider; see `polymux.device.protocol.Stream`."""

    def __init__(self, spec: DeviceSpec, share: Share, number: int, sessions: OnnxSessions) -> None:
        super().__init__(spec)
        self.share = share
        self._number = number
        self._sessions = sessions

    def bind_thread(self) -> None:
        """Leave the thread where it may run."""

    def copy_in(self, *_: object) -> None:
        """Refuse: there is no memory to copy to."""
        raise InvalidRequest(f"{self._spec.id} works on host memory: nothing is copied to it")

    def copy_out(self, *_: object) -> None:
        """Refuse: there is no memory to copy from."""
        raise InvalidRequest(f"{self._spec.id} works on host memory: nothing is copied from it")

    def copy_peer(self, *_: object) -> None:
        """Refuse: it has no peer."""
        raise InvalidRequest(f"{self._spec.id} has no peer")

    def _prepare(self, spec: KernelSpec, implementation: Implementation) -> Prepared:
        if not isinstance(implementation, ProviderModel):
            raise LaunchError(
                TaskStatus.NO_DEVICE,
                f"it was given an implementation for {implementation.api}; {self._spec.id} runs those for"
                f" {', '.join(self._spec.apis)}",
            )
        session = self._sessions.get_through(implementation, _ONE_THREAD, self._number)
        return PreparedOnnx(spec, session, None)


def open_devices(request: DeviceRequest, surroundings: Surroundings) -> Found:
    """Open the device of a string ``onnxruntime:PROVIDER``, or the first one that there is for ``onnxruntime``.

    Raises
    ------
    DeviceUnavailable
        If onnxruntime is not installed, does not offer the provider, or cannot set it up for an accelerator of this
        number: none has it, or the driver is missing.
    ConfigError
        For a provider that is not known or computes on the processor, and bad options.
    """
    request.check_options(_OPTIONS)
    if request.file:
        raise request.error(request.file, "onnxruntime takes a provider, not a file: onnxruntime:cuda")
    name, colon, number = request.target.partition(":")
    if colon and not (number.isascii() and number.isdecimal()):
        raise request.error(
            number, "give the number of an accelerator behind the provider: onnxruntime:cuda:1"
        )
    provider = _provider(request, name, int(number or 0))
    spec = DeviceSpec(
        id=DeviceId(f"onnxruntime:{surroundings.next_index}"),
        api="onnxruntime",
        name=f"accelerator {number or 0} of {provider.called}",
        memory_nbytes=host_memory_nbytes(),
        memory="host",
        units=1,
        streams=request.streams(1, 1),
        apis=(ProviderModel.api_of(provider.name),),
        details=f"onnxruntime {import_onnxruntime().__version__}; runs models only",
    )
    return Found([OnnxDevice(spec, int(number or 0))])


def _provider(request: DeviceRequest, name: str, number: int) -> Provider:
    accelerated = [provider for provider in onnx_providers.PROVIDERS if not provider.on_processor]
    if name:
        provider = onnx_providers.find_provider(name)
        if provider not in accelerated:
            known = ", ".join(its.name for its in accelerated)
            remedy = f"no execution provider for an accelerator is called so; known are {known}"
            raise request.error(name, remedy)
        assert provider is not None
        problem = onnx_providers.why_not(provider) or onnx_providers.why_not_set_up(provider, number)
        if problem:
            raise DeviceUnavailable(problem)
        return provider
    there = [provider for provider in accelerated if not onnx_providers.why_not(provider)]
    if not there:
        problem = onnx_providers.why_not(accelerated[0])
        raise DeviceUnavailable(f"no execution provider for an accelerator is there: {problem}")
    problems = []
    for provider in there:
        problem = onnx_providers.why_not_set_up(provider, number)
        if not problem:
            return provider
        problems.append(problem)
    raise DeviceUnavailable("; ".join(problems))
