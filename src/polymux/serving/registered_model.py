"""A version of a model that the core knows as a kernel, or as a chain of kernels where it is cut."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from polymux.client import Client
from polymux.client.model_versions import register_versions
from polymux.core.errors import PolymuxError
from polymux.core.implementation import OnnxModel
from polymux.core.kernel_spec import KernelSpec
from polymux.serving.config_check import complete
from polymux.serving.errors import ModelLoadError
from polymux.serving.model_config_pb2 import ModelConfig
from polymux.serving.models import LoadedModel
from polymux.serving.runner import ModelRunner
from polymux.serving.signature import ModelSignature

__all__ = ["RegisteredModel", "register_model"]


@dataclass(frozen=True, slots=True)
class RegisteredModel:
    """A version of a model that the core knows as a kernel.

    Attributes
    ----------
    config : ModelConfig
        Complete.
    signature : ModelSignature
        What requests are checked against.
    spec : KernelSpec
        The kernel, as the server described it.
    parts : tuple of KernelSpec
        Kernels that run one after the other in its place, where the model is cut; their parameters have the names of
        the tensors that they hand on.
    """

    config: ModelConfig
    signature: ModelSignature
    spec: KernelSpec
    parts: tuple[KernelSpec, ...] = ()

    def loaded(self, runner: ModelRunner) -> LoadedModel:
        """Put it together with what runs it."""
        names = tuple(param.name for param in self.spec.outputs)
        return LoadedModel(self.config, self.signature, runner, names)


def register_model(
    client: Client, name: str, version: int, path: Path, config: ModelConfig
) -> RegisteredModel:
    """Register one version of a model as a kernel; the parameters are those of `Loader.load`.

    Raises
    ------
    ModelLoadError
        With the reason, when the file is no model, or the configuration contradicts it.
    """
    if not path.is_file():
        raise ModelLoadError(f"there is no file {path}")
    kernel = f"{name}/{version}"
    try:
        spec = register_versions(client, kernel, OnnxModel(str(path.resolve())), path.resolve())
        completed, signature = complete(config, name, spec)
    except PolymuxError as error:
        raise ModelLoadError(str(error)) from error
    return RegisteredModel(completed, signature, spec)
