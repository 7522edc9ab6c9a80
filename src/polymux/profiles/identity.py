"""Keys: which model, and which kind of device with which driver and libraries."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from polymux.core.errors import ConfigError
from polymux.core.implementation import OnnxModel, OpenVinoModel, ProviderModel

_CHUNK_NBYTES = 1 << 20
_ONNXRUNTIME = (
    "onnxruntime",
    "onnxruntime-gpu",
    "onnxruntime-openvino",
    "onnxruntime-migraphx",
    "onnxruntime-rocm",
)
"""Packages that bring onnxruntime, one of which is installed."""
_MODELS = {OnnxModel.api: _ONNXRUNTIME, OpenVinoModel.api: ("openvino",)}
"""Packages that compute models, by the API of the version that a device runs."""
_LIBRARIES = {"opencl": ("pyopencl",)}
"""Packages that compute anything else, by the device's own API."""
_PROVIDER = "execution provider"
_PROCESSOR = ("vendor_id", "cpu family", "model", "stepping", "cache size")


@dataclass(frozen=True, slots=True)
class DeviceIdentity:
    """What a measured time depends on besides model, share and batch.

    Parameters
    ----------
    api : str
        Such as ``"cpu"``.
    name : str
        The processor's or card's.
    units : int
        Compute units of the whole device.
    memory : str
        ``"host"`` or ``"own"``.
    driver : str
        The driver's version; of a cpu, which processor exactly it is.
    versions : mapping of str to str
        Versions of the libraries that compute.
    """

    api: str
    name: str
    units: int
    memory: str = "host"
    driver: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Equal for devices on which the same times can be expected; see `device_key`."""
        return f"{self.api}-{hashlib.sha256(self.to_json().encode()).hexdigest()[:16]}"

    def to_json(self) -> str:
        """Write it as JSON, always in the same order."""
        return json.dumps(asdict(self) | {"versions": dict(self.versions)}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> DeviceIdentity:
        """Read what `to_json` has written.

        Raises
        ------
        ValueError, TypeError
            If it is something else.
        """
        return cls(**json.loads(text))

    def differences(self, other: DeviceIdentity) -> list[str]:
        """Say in what another device differs: ``"units 2, here 4"``."""
        mine, its = asdict(self), asdict(other)
        return [f"{name} {its[name]}, here {mine[name]}" for name in mine if mine[name] != its[name]]

    def __str__(self) -> str:
        libraries = ", ".join(f"{name} {number}" for name, number in sorted(self.versions.items()))
        units = f"{self.units} unit" + ("s" if self.units != 1 else "")
        memory = "" if self.memory == "host" else ", memory of its own"
        return f"{self.api} {self.name}, {units}{memory}" + (f", {libraries}" if libraries else "")


def identify(device: Mapping[str, Any]) -> DeviceIdentity:
    """Tell which kind of device this is.

    Parameters
    ----------
    device : mapping
        As the server describes it (an entry of ``devices`` in its status): ``api``, ``name``, ``units``, ``memory``,
        ``details``, ``apis``.

    Notes
    -----
    Which library runs models there counts: the first one among its APIs. The libraries' versions and, for a cpu, the
    exact processor are those of this machine and Python environment, as a server on it has them.
    """
    api = str(device["api"])
    driver = _processor() if api == "cpu" else str(device.get("details", ""))
    found = _versions(api, device.get("apis", ()))
    return DeviceIdentity(
        api, str(device["name"]), int(device["units"]), str(device["memory"]), driver, found
    )


def device_key(device: Mapping[str, Any]) -> str:
    """Key of a device as the server describes it; changes with its kind, units, driver and libraries."""
    return identify(device).key


def model_key(path: str | Path) -> str:
    """Key of a model's content: SHA-256 of its file, as ``sha256:`` and 64 hexadecimal digits.

    Raises
    ------
    ConfigError
        If the file cannot be read.

    Notes
    -----
    Weights that lie in files of their own do not count; their types and shapes, on which the times depend, are in the
    model's file.
    """
    digest = hashlib.sha256()
    try:
        with Path(path).open("rb") as file:
            while chunk := file.read(_CHUNK_NBYTES):
                digest.update(chunk)
    except OSError as error:
        raise ConfigError(str(path), "model", error.strerror or str(error), "give an ONNX file") from error
    return f"sha256:{digest.hexdigest()}"


def _versions(api: str, apis: Sequence[str]) -> dict[str, str]:
    """Say which libraries compute on a device, and which of their versions."""
    runs = next((its for its in apis if its in _MODELS or ProviderModel.provider_of(its)), None)
    if runs is None and api == "cpu":
        runs = OnnxModel.api
    provider = ProviderModel.provider_of(runs or "")
    packages = _ONNXRUNTIME if provider else _MODELS.get(runs or "", _LIBRARIES.get(api, ()))
    found = {name: number for name in packages if (number := package_version(name))}
    return found | ({_PROVIDER: provider} if provider else {})


def package_version(package: str) -> str | None:
    """Version of an installed package; None when it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    """Which processor exactly this machine has, as Linux tells it; empty where it does not."""
    try:
        first, _, _ = Path("/proc/cpuinfo").read_text().partition("\n\n")
    except OSError:
        return ""
    parts = [line.partition(":") for line in first.splitlines()]
    facts = {name.strip(): value.strip() for name, _, value in parts}
    return ", ".join(f"{name} {facts[name]}" for name in _PROCESSOR if name in facts)
