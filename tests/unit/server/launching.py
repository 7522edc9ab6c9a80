"""A device whose launches end when a test says so, in a runtime beside a cpu."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

import polymux.server.runtime
from polymux.client import Client
from polymux.core.device_spec import AbsentDevice, DeviceSpec, Share
from polymux.core.ids import DeviceId
from polymux.device.cpu import CpuDevice, CpuStream
from polymux.device.protocol import Device, Operand, Prepared, Scalars, Shapes
from polymux.device.registry import discover
from polymux.server.options import RuntimeOptions
from polymux.server.runtime import Runtime

TIMEOUT_S = 20.0


class Control:
    """What a test sees of the launches, and how it lets them end."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.changed = threading.Condition()
        self.launches: list[HeldLaunch] = []
        self.free = False
        self.trims = 0
        """How often a stream was told to give its scratch memory back."""
        self.operator: Client
        self.copy_fault: Callable[[], None] = lambda: None
        self.fault: Callable[[], None] = lambda: None
        """What a launch that has not been told otherwise meets when it ends."""

    def expect_started(self, count: int) -> None:
        """Wait until so many have been started since the beginning."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.launches) >= count, TIMEOUT_S), len(self.launches)

    def end(self, index: int, fault: Callable[[], None] | None = None) -> None:
        """Let a launch end, well or with an error."""
        with self.changed:
            launch = self.launches[index]
            launch.fault = fault
            launch.released = True
            self.changed.notify_all()

    def end_all(self) -> None:
        """Let all end that have started or will."""
        with self.changed:
            self.free = True
            self.changed.notify_all()


class HeldLaunch:
    """Computes when it is allowed to end, so that nobody sees its result before."""

    def __init__(self, control: Control, name: str, compute: Callable[[], Shapes | None]) -> None:
        self.name = name
        self.fault: Callable[[], None] | None = None
        self.released = False
        self._control = control
        self._compute = compute

    def ended(self) -> bool:
        return self.released or self._control.free

    def wait(self) -> Shapes | None:
        with self._control.changed:
            assert self._control.changed.wait_for(self.ended, TIMEOUT_S)
        (self.fault or self._control.fault)()
        return self._compute()


class HeldStream:
    """A `LaunchingStream` around a cpu's."""

    def __init__(self, stream: CpuStream, control: Control) -> None:
        self._stream = stream
        self._control = control
        self._names: dict[int, str] = {}
        self.share = stream.share

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def copy_in(self, memory: Any, host: Any) -> None:
        self._control.copy_fault()
        self._stream.copy_in(memory, host)

    def copy_out(self, memory: Any, host: Any) -> None:
        self._control.copy_fault()
        self._stream.copy_out(memory, host)

    def trim(self) -> None:
        with self._control.changed:
            self._control.trims += 1
            self._control.changed.notify_all()

    def prepare(self, spec: Any, implementation: Any) -> Prepared:
        prepared = self._stream.prepare(spec, implementation)
        self._names[id(prepared)] = spec.name
        return prepared

    def start(self, prepared: Prepared, operands: Sequence[Operand], scalars: Scalars) -> HeldLaunch:
        held = dict(scalars)
        name = self._names[id(prepared)]
        launch = HeldLaunch(self._control, name, lambda: self._stream.launch(prepared, list(operands), held))
        with self._control.changed:
            self._control.launches.append(launch)
            self._control.changed.notify_all()
        return launch


class HeldDevice(CpuDevice):
    """A cpu with memory of its own whose launches are held."""

    def __init__(self, spec: DeviceSpec, control: Control, caller: Any) -> None:
        super().__init__(spec, (0,), caller)
        self._control = control

    def open_stream(self, share: Share | None = None) -> Any:
        return HeldStream(super().open_stream(share or Share()), self._control)


@contextmanager
def held_runtime(
    monkeypatch: pytest.MonkeyPatch,
    launch_ahead: int = 3,
    memory_nbytes: int = 1 << 20,
    devices: int = 1,
) -> Iterator[tuple[Client, list[Control]]]:
    """Run a cpu (``cpu:0``) and devices ``held:0``, ``held:1`` ...; a client of it and the controls.

    A request waits for the answer to the one before it: `Control.operator` is another connection.
    """
    controls = [Control(f"held:{index}") for index in range(devices)]

    def found(requests: Sequence[str], **options: Any) -> tuple[list[Device], list[AbsentDevice]]:
        opened, absent = discover(("cpu",), **options)
        for control in controls:
            spec = DeviceSpec(
                DeviceId(control.device),
                "cpu",
                "its launches are held",
                memory_nbytes,
                "own",
                1,
                1,
                ("cpu",),
                launch_ahead=launch_ahead,
            )
            opened.append(HeldDevice(spec, control, options["native_caller"]))
        return opened, absent

    monkeypatch.setattr(polymux.server.runtime, "discover", found)
    requests = ("cpu", *["cpu:0"] * devices)
    try:
        with Runtime(RuntimeOptions(devices=requests)) as runtime:
            with Client(fd=runtime.connect_pair().detach(), segment_nbytes=64 << 20) as client:
                for control in controls:
                    control.operator = Client(fd=runtime.connect_pair().detach(), name="operator")
                try:
                    yield client, controls
                finally:
                    for control in controls:
                        control.end_all()
                        control.operator.close()
    finally:
        monkeypatch.undo()
