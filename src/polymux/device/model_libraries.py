"""What runs models in this Python environment, and how an operator chooses it, for ``polymux devices``."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, packages_distributions, version

from polymux.device import onnx_providers, openvino_model

_MODULE = "onnxruntime"


@dataclass(frozen=True, slots=True)
class ModelLibrary:
    """Something that can run models.

    Parameters
    ----------
    name : str
        The library, with its execution provider behind a colon where it is not the usual one.
    version : str
        Empty: it is not installed.
    use : str
        What an operator writes to have it, or the remedy when it is not there.
    """

    name: str
    version: str
    use: str


def model_libraries() -> list[ModelLibrary]:
    """List what there is, and what there could be."""
    number = _version(_MODULE)
    if not number:
        found = [ModelLibrary(_MODULE, "", "pip install 'polymux[onnx]'")]
    else:
        found = [ModelLibrary(_MODULE, number, "on cpu devices, unless they say otherwise")]
    offered = onnx_providers.offered() if number else ()
    for provider in offered:
        name = f"{_MODULE}:{provider.name}"
        use = f"--device cpu,models={name}" if provider.on_processor else f"--device {name}"
        found.append(ModelLibrary(name, number, use))
    number = _version(openvino_model.PACKAGE)
    use = "--device cpu,models=openvino" if number else "pip install 'polymux[openvino]'"
    found.append(ModelLibrary(openvino_model.PACKAGE, number, use))
    lacking: dict[str, list[str]] = {}
    for provider in onnx_providers.PROVIDERS:
        if provider not in offered:
            lacking.setdefault(provider.package, []).append(f"{_MODULE}:{provider.name}")
    found += [
        ModelLibrary(", ".join(names), "", f"comes with {package}") for package, names in lacking.items()
    ]
    return found


def _version(module: str) -> str:
    """Return the version of the distribution that brings a module: onnxruntime comes with several; empty: none."""
    try:
        return version(module)
    except PackageNotFoundError:
        names = packages_distributions().get(module, [])
        return version(names[0]) if names else ""
