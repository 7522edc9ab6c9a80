"""How much of a device's time tasks of queues take, lately."""

from __future__ import annotations

from dataclasses import dataclass

from polymux.core.ids import DeviceId
from polymux.core.jobs.view import JobDeviceState, JobView

WINDOW_NS = 1_000_000_000
"""Over which it is measured; half of what was before is kept."""


class Occupancy:
    """The part of each device's time for which tasks had it."""

    def __init__(self) -> None:
        self._windows: dict[DeviceId, _Window] = {}

    def update(self, view: JobView, now: int) -> None:
        """Look at all devices."""
        for name, device in view.devices.items():
            used = device.tasks_held_ns(now)
            window = self._windows.setdefault(name, _Window(now, used))
            if used < window.used_ns:  # it was lost, and is back
                window = self._windows[name] = _Window(now, used)
            length = now - window.start_ns
            if length >= WINDOW_NS:
                part = (used - window.used_ns) / length
                kept = 0.5 ** (length // WINDOW_NS)
                window.part = kept * window.part + (1 - kept) * part
                window.start_ns, window.used_ns = now, used

    def part(self, device: JobDeviceState) -> float:
        """Part of a device's time that tasks take, 0 to 1; less than a hundredth counts as nothing."""
        window = self._windows.get(device.spec.id)
        return window.part if window is not None and window.part > 0.01 else 0.0


@dataclass(slots=True)
class _Window:
    start_ns: int
    used_ns: int
    part: float = 0.0
