"""Energy that the machine's own counters have counted: RAPL for processors and their memory, NVML for NVIDIA's GPUs.

Both count from some moment before, and RAPL's counters start again at 0 after a while; a meter tells the joules since
it was made. A counter that is not there is a sentence, as an absent device is.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from polymux.core.device_spec import AbsentDevice
from polymux.core.errors import DeviceUnavailable
from polymux.perfmodel.energy import counted_energy_j

POWERCAP = Path("/sys/class/powercap")
NVML = "libnvidia-ml.so.1"
_DOMAINS = ("package", "dram")
_NVML_WRAPS_AT = (1 << 64) - 1


class EnergyMeter(Protocol):
    """A counter of energy."""

    @property
    def name(self) -> str:
        """What it counts: ``"package-0"``, ``"nvml:0"``."""
        ...

    def joules(self) -> float:
        """Energy since the meter was made, in J.

        Raises
        ------
        DeviceUnavailable
            If the counter cannot be read.
        """
        ...


class RaplMeter:
    """A domain of the kernel's power capping framework.

    Parameters
    ----------
    name : str
    folder : Path
        Of the domain, with ``energy_uj`` and ``max_energy_range_uj``.

    Raises
    ------
    DeviceUnavailable
        If it cannot be read; since 2020 the kernel shows it to root alone.

    Notes
    -----
    The counter of a busy processor starts again after some minutes: whoever asks less often than that misses whole
    turns.

    References
    ----------
    Linux kernel: power capping framework.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self._name = name
        self._folder = folder
        self._lock = threading.Lock()
        self._wraps_at = self._read("max_energy_range_uj")
        self._last = self._read("energy_uj")
        self._total_j = 0.0

    @property
    def name(self) -> str:
        """Name of the domain."""
        return self._name

    def joules(self) -> float:
        """Energy since the meter was made, in J."""
        with self._lock:
            now = min(self._read("energy_uj"), self._wraps_at)
            self._total_j += counted_energy_j(min(self._last, self._wraps_at), now, self._wraps_at)
            self._last = now
            return self._total_j

    def _read(self, file: str) -> int:
        path = self._folder / file
        try:
            return int(path.read_text())
        except PermissionError as error:
            raise DeviceUnavailable(f"{path} is for root alone; run as root, or make it readable") from error
        except (OSError, ValueError) as error:
            raise DeviceUnavailable(f"{path} cannot be read: {error}") from error


class NvmlMeter:
    """An NVIDIA GPU, by the driver's management library.

    Parameters
    ----------
    index : int
    library : ctypes.CDLL
        Initialized.

    Raises
    ------
    DeviceUnavailable
        If the GPU does not count its energy (older than Volta), or the driver refuses.

    References
    ----------
    NVML API: nvmlDeviceGetTotalEnergyConsumption, millijoules since the driver was loaded.
    """

    def __init__(self, index: int, library: Any) -> None:
        self._name = f"nvml:{index}"
        self._library = library
        self._device = ctypes.c_void_p()
        _call(library, "nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(self._device))
        self._first = self._read()

    @property
    def name(self) -> str:
        """``"nvml:0"``, by the driver's order."""
        return self._name

    def joules(self) -> float:
        """Energy since the meter was made, in J."""
        return counted_energy_j(self._first, self._read(), _NVML_WRAPS_AT, 1e-3)

    def _read(self) -> int:
        counted = ctypes.c_ulonglong()
        _call(self._library, "nvmlDeviceGetTotalEnergyConsumption", self._device, ctypes.byref(counted))
        return counted.value


class EnergyMeters:
    """All meters of the machine.

    Parameters
    ----------
    meters : sequence of EnergyMeter
    absent : sequence of AbsentDevice
        Why others are not there.

    Notes
    -----
    May be used from any thread.
    """

    def __init__(self, meters: Sequence[EnergyMeter], absent: Sequence[AbsentDevice] = ()) -> None:
        self.meters = tuple(meters)
        self.absent = tuple(absent)

    def read(self) -> list[dict[str, Any]]:
        """Tell for each meter its name and joules; those are None with a problem when it cannot be read now."""
        return [_reading(meter) for meter in self.meters]


def find_meters(powercap: Path = POWERCAP, nvml: str = NVML) -> EnergyMeters:
    """Find what counts energy on this machine.

    Parameters
    ----------
    powercap : Path
        Folder of the kernel's power capping framework.
    nvml : str
        Library of NVIDIA's driver.
    """
    absent: list[str] = []
    meters: list[EnergyMeter] = [*_find_rapl(powercap, absent), *_find_nvml(nvml, absent)]
    return EnergyMeters(meters, [AbsentDevice("energy meter", reason) for reason in absent])


def _reading(meter: EnergyMeter) -> dict[str, Any]:
    try:
        return {"name": meter.name, "joules": meter.joules(), "problem": None}
    except DeviceUnavailable as error:
        return {"name": meter.name, "joules": None, "problem": error.reason}


def _find_rapl(powercap: Path, absent: list[str]) -> Iterator[RaplMeter]:
    found = False
    for folder in sorted(powercap.glob("intel-rapl:*")):
        try:
            domain = (folder / "name").read_text().strip()
        except OSError:
            continue  # a domain that went away
        if not domain.startswith(_DOMAINS):
            continue
        found = True
        try:
            yield RaplMeter(
                domain if domain[-1].isdigit() else f"{domain}-{folder.name.split(':')[1]}", folder
            )
        except DeviceUnavailable as error:
            absent.append(error.reason)
    if not found:
        absent.append(f"{powercap} has no RAPL domain; virtual machines rarely show one")


def _find_nvml(name: str, absent: list[str]) -> Iterator[NvmlMeter]:
    try:
        library = ctypes.CDLL(name)
        _call(library, "nvmlInit_v2")
        count = ctypes.c_uint()
        _call(library, "nvmlDeviceGetCount_v2", ctypes.byref(count))
    except (OSError, DeviceUnavailable) as error:
        reason = error.reason if isinstance(error, DeviceUnavailable) else f"{name} cannot be loaded"
        absent.append(f"no NVIDIA GPU tells its energy: {reason}")
        return
    for index in range(count.value):
        try:
            yield NvmlMeter(index, library)
        except DeviceUnavailable as error:
            absent.append(f"nvml:{index} does not tell its energy: {error.reason}")


def _call(library: Any, function: str, *arguments: Any) -> None:
    try:
        status = getattr(library, function)(*arguments)
    except AttributeError as error:
        raise DeviceUnavailable(f"the driver's library has no {function}; it is too old") from error
    if status != 0:
        raise DeviceUnavailable(f"{function} returned {status}")
