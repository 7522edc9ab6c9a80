"""Execution providers of onnxruntime: what else than its own kernels for the processor may run models.

Which ones there are depends on how the installed onnxruntime was built. Each one that computes on the processor is a
choice of cpu devices (``models=onnxruntime:NAME``); those for accelerators are devices of their own
(``onnxruntime:NAME``).
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from polymux.core.errors import DeviceUnavailable
from polymux.device.onnx_model import import_onnxruntime

PLAIN = "CPUExecutionProvider"
"""The processor's own kernels; runs whatever another provider cannot."""
_ONE_NODE = (
    b'\x08\x08:5\n\x0e\n\x01x\n\x01x\x12\x01y"\x03Add\x12\x01gZ\x0f\n\x01x\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01'
    b"b\x0f\n\x01y\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01B\x04\n\x00\x10\r"
)
"""A model as a file has it: y = x + x for one float, of opset 13; onnx, which writes models, need not be installed."""
_LIBRARY = "libonnxruntime_providers_*.so"
_BASE = "libonnxruntime_providers_shared.so"
"""Is there with every onnxruntime and brings no provider."""


@dataclass(frozen=True, slots=True)
class Provider:
    """An execution provider.

    Parameters
    ----------
    name : str
        As an operator writes it.
    called : str
        As onnxruntime calls it.
    on_processor : bool
        Whether it computes on the processor; otherwise on an accelerator of its own.
    package : str
        What brings it.
    options : mapping of str to str
        For its sessions.
    behind : tuple of str
        What takes over the nodes that it cannot run, before the processor does.
    """

    name: str
    called: str
    on_processor: bool
    package: str
    options: Mapping[str, str] = field(default_factory=dict)
    behind: tuple[str, ...] = ()


PROVIDERS = (
    Provider(
        "tensorrt", "TensorrtExecutionProvider", False, "onnxruntime-gpu", behind=("CUDAExecutionProvider",)
    ),
    Provider("cuda", "CUDAExecutionProvider", False, "onnxruntime-gpu"),
    Provider(
        "migraphx",
        "MIGraphXExecutionProvider",
        False,
        "onnxruntime-migraphx",
        behind=("ROCMExecutionProvider",),
    ),
    Provider("rocm", "ROCMExecutionProvider", False, "onnxruntime-rocm"),
    Provider(
        "openvino",
        "OpenVINOExecutionProvider",
        True,
        "onnxruntime-openvino",
        {"device_type": "CPU", "precision": "FP32"},
    ),
    Provider("dnnl", "DnnlExecutionProvider", True, "an onnxruntime built with oneDNN"),
    Provider("xnnpack", "XnnpackExecutionProvider", True, "an onnxruntime built with XNNPACK"),
    Provider("acl", "ACLExecutionProvider", True, "an onnxruntime built with the Arm Compute Library"),
)
"""Those that Polymux knows how to use, on one kind of accelerator the faster ones first."""


def find_provider(name: str) -> Provider | None:
    """Find a provider by the name that an operator writes."""
    return next((provider for provider in PROVIDERS if provider.name == name), None)


def offered() -> tuple[Provider, ...]:
    """List the known providers that the installed onnxruntime offers, besides the processor's own.

    Notes
    -----
    An onnxruntime without a library for a provider is not imported for this, which would take a third of a second.
    """
    if not _brings_libraries():
        return ()
    there = available()
    return tuple(provider for provider in PROVIDERS if provider.called in there)


def available() -> tuple[str, ...]:
    """List all providers that the installed onnxruntime offers, by the names that it gives them.

    Raises
    ------
    DeviceUnavailable
        If it is not installed.
    """
    return tuple(import_onnxruntime().get_available_providers())


def why_not(provider: Provider) -> str:
    """Say why a provider cannot be used, with the remedy; empty: it can.

    Notes
    -----
    Imports onnxruntime.
    """
    try:
        there = available()
    except DeviceUnavailable as error:
        return error.reason
    if provider.called in there:
        return ""
    version = import_onnxruntime().__version__
    return (
        f"onnxruntime {version} offers {', '.join(there)} but no {provider.called}; install {provider.package} in its"
        " place"
    )


def for_session(provider: Provider | None) -> list[Any]:
    """Write a provider, and those behind it, as a session takes them.

    Notes
    -----
    Imports onnxruntime: of those behind it only what is offered can be given.
    """
    if provider is None:
        return [PLAIN]
    behind = [name for name in provider.behind if name in available()]
    return [(name, dict(provider.options)) for name in (provider.called, *behind)] + [PLAIN]


def on_device(provider: Provider, number: int) -> Provider:
    """Have a provider compute on the accelerator of some number, as its driver counts them."""
    return replace(provider, options={**provider.options, "device_id": str(number)})


def unused(provider: Provider, used: Sequence[str]) -> str:
    """Say so when a session does without a provider that it was given, as onnxruntime does when its driver fails."""
    if provider.called in used:
        return ""
    return f"onnxruntime could not set {provider.called} up; is the driver that it needs installed?"


def why_not_set_up(provider: Provider, number: int) -> str:
    """Say why the accelerator of some number behind a provider cannot be used; empty: it computes a model.

    Notes
    -----
    Makes a session of one node, which takes as long as the driver needs to start. That onnxruntime offers a provider
    only says that it was built with it.
    """
    runtime = import_onnxruntime()
    options = runtime.SessionOptions()
    options.log_severity_level = 4  # what it would write is in the answer
    called = f"accelerator {number} of {provider.called}"
    try:
        session = runtime.InferenceSession(
            _ONE_NODE, options, providers=for_session(on_device(provider, number)), enable_fallback=0
        )
    except Exception as error:  # onnxruntime's errors have no common class but this
        return f"{called} cannot be used: {error}; give a number that there is, and check its driver"
    problem = unused(provider, session.get_providers())
    return f"{called} cannot be used: {problem}" if problem else ""


@functools.cache
def _brings_libraries() -> bool:
    found = importlib.util.find_spec("onnxruntime")
    if found is None or not found.submodule_search_locations:
        return False
    folders = [Path(place) / "capi" for place in found.submodule_search_locations]
    return any(path.name != _BASE for folder in folders for path in folder.glob(_LIBRARY))
