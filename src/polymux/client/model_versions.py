"""The versions of a model that the devices of a server want, under one name in its dispatch table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from polymux.client.client import Client
from polymux.core.implementation import Implementation, OnnxModel, OpenVinoModel, ProviderModel
from polymux.core.kernel_spec import KernelSpec

__all__ = ["register_versions", "runs_models", "wanted_versions", "widest_share"]


def runs_models(apis: Sequence[str]) -> bool:
    """Tell whether a device with these APIs runs ONNX models, in whichever version."""
    return any(_is_model(api) for api in apis)


def wanted_versions(client: Client) -> tuple[str, ...]:
    """List the APIs through which some device would rather run models than with onnxruntime on the processor.

    Parameters
    ----------
    client : Client

    Returns
    -------
    tuple of str
        Such as ``"openvino"`` or ``"onnx:cuda"``, each once.
    """
    wanted: dict[str, None] = {}
    for device in client.status()["devices"]:
        apis = device["apis"]
        before = apis[: apis.index(OnnxModel.api)] if OnnxModel.api in apis else apis
        wanted.update(dict.fromkeys(api for api in before if _is_model(api)))
    return tuple(wanted)


def widest_share(client: Client) -> int:
    """Count the compute units of the largest share on which a model may run; 0: no device runs models."""
    found = [
        device["units"] if stream["units"] is None else len(stream["units"])
        for device in client.status()["devices"]
        if runs_models(device["apis"])
        for stream in device["streams"]
    ]
    return max(found, default=0)


def register_versions(client: Client, name: str, model: OnnxModel, plain: Path | None) -> KernelSpec:
    """Register a model as a kernel, with a version for each API that a device wants.

    Parameters
    ----------
    client : Client
    name : str
        The kernel's.
    model : OnnxModel
        For onnxruntime on the processor; its inputs and outputs are the kernel's.
    plain : pathlib.Path or None
        The same for whatever else runs models; None: there is no such version.

    Raises
    ------
    PolymuxError
        If the server refuses it.
    """
    spec = client.register(None, model, name=name, isolate=False)
    if plain is not None:
        for api in wanted_versions(client):
            client.register(spec, _version(api, plain), name=name, isolate=False)
    return spec


def _is_model(api: Any) -> bool:
    return api in (OnnxModel.api, OpenVinoModel.api) or ProviderModel.provider_of(api) is not None


def _version(api: str, path: Path) -> Implementation:
    provider = ProviderModel.provider_of(api)
    return OpenVinoModel(str(path)) if provider is None else ProviderModel(str(path), provider)
