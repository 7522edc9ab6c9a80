"""The models that the front end knows: which of them are ready, and why the others are not."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from polymux.serving.errors import RequestError
from polymux.serving.model_config_pb2 import ModelConfig
from polymux.serving.runner import ModelRunner
from polymux.serving.signature import ModelSignature

__all__ = ["LoadedModel", "ModelState", "ModelVersion", "Models"]


class ModelState(StrEnum):
    """State of a model version, in the words of the repository index."""

    LOADING = "LOADING"
    READY = "READY"
    UNAVAILABLE = "UNAVAILABLE"


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """What a model version has once it is ready.

    Attributes
    ----------
    config : ModelConfig
        Complete.
    signature : ModelSignature
        What requests are checked against.
    runner : ModelRunner
        Runs it.
    output_names : tuple of str
        All outputs in the runner's order; the signature may offer fewer.
    """

    config: ModelConfig
    signature: ModelSignature
    runner: ModelRunner
    output_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """One version of a model.

    Attributes
    ----------
    name : str
        The model.
    version : int or None
        The version; None when the model as a whole cannot be served.
    state : ModelState
    reason : str
        Why it is not ready; empty when it is.
    loaded : LoadedModel or None
        Present exactly when the state is READY.
    """

    name: str
    version: int | None
    state: ModelState
    reason: str = ""
    loaded: LoadedModel | None = None


class Models:
    """The known model versions, by name and version."""

    def __init__(self) -> None:
        self._models: dict[str, dict[int | None, ModelVersion]] = {}

    def put(self, version: ModelVersion) -> ModelVersion | None:
        """Set the state of a model version, and return what it was before."""
        versions = self._models.setdefault(version.name, {})
        previous = versions.get(version.version)
        versions[version.version] = version
        return previous

    def all_versions(self) -> list[ModelVersion]:
        """Return all of them, by name and then by version."""
        return [version for _, versions in sorted(self._models.items()) for version in versions.values()]

    def are_ready(self) -> bool:
        """Whether every model version is ready."""
        return all(version.state is ModelState.READY for version in self.all_versions())

    def ready_versions(self, name: str) -> list[int]:
        """Return the versions of a model that are ready, least first."""
        versions = self._models.get(name, {}).values()
        return sorted(v.version for v in versions if v.loaded is not None and v.version is not None)

    def find(self, name: str, version: int | None = None) -> ModelVersion:
        """Return one version of a model.

        Parameters
        ----------
        name : str
            The model.
        version : int, optional
            The version; without it the greatest that is ready, or, when none is, the greatest.

        Raises
        ------
        RequestError
            404 when there is no such model or version.
        """
        versions = self._models.get(name)
        if versions is None:
            raise RequestError(
                404, f"unknown model '{name:.100}'; POST /v2/repository/index lists the models"
            )
        if version is not None:
            if version in versions:
                return versions[version]
            if None in versions:
                return versions[None]
            raise RequestError(
                404, f"model '{name}' has no version {version}; it has {sorted(self._numbers(name))}"
            )
        chosen = max(self.ready_versions(name) or self._numbers(name), default=None)
        return versions[chosen]

    def find_loaded(self, name: str, version: int | None = None) -> tuple[int, LoadedModel]:
        """Return a version that is ready, with its number.

        Raises
        ------
        RequestError
            404 when there is no such model or version, 503 with the reason when it is not ready.
        """
        found = self.find(name, version)
        if found.loaded is None or found.version is None:
            reason = found.reason or "it is still loading"
            raise RequestError(503, f"model '{name}' is not ready: {reason}", ((b"retry-after", b"1"),))
        return found.version, found.loaded

    def index(self, ready_only: bool) -> list[dict[str, str]]:
        """Return the repository index: name, version, state and reason of each model version."""
        return [
            {
                "name": version.name,
                "version": "" if version.version is None else str(version.version),
                "state": version.state.value,
                "reason": version.reason,
            }
            for version in self.all_versions()
            if version.state is ModelState.READY or not ready_only
        ]

    def _numbers(self, name: str) -> list[int]:
        return [number for number in self._models[name] if number is not None]
