"""The versions of a model that the devices of a server want, under one name in its dispatch table."""

from __future__ import annotations

from pathlib import Path

from polymux.client import Client
from polymux.core.implementation import OnnxModel, OpenVinoModel
from polymux.core.kernel_spec import KernelSpec

__all__ = ["register_versions", "wants_openvino"]


def wants_openvino(client: Client) -> bool:
    """Tell whether a device would rather run models with OpenVINO."""

    def place(apis: list[str], api: str) -> int:
        return apis.index(api) if api in apis else len(apis)

    devices = [device["apis"] for device in client.status()["devices"]]
    return any(place(apis, OpenVinoModel.api) < place(apis, OnnxModel.api) for apis in devices)


def register_versions(client: Client, name: str, model: OnnxModel, plain: Path | None) -> KernelSpec:
    """Register a model as a kernel.

    Parameters
    ----------
    client : Client
    name : str
        The kernel's.
    model : OnnxModel
        For onnxruntime; its inputs and outputs are the kernel's.
    plain : pathlib.Path or None
        The same for OpenVINO; None: there is no such version.

    Raises
    ------
    PolymuxError
        If the server refuses it.
    """
    spec = client.register(None, model, name=name, isolate=False)
    if plain is not None:
        client.register(spec, OpenVinoModel(str(plain)), name=name, isolate=False)
    return spec
