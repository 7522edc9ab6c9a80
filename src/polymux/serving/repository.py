"""What lies in a model repository: models, their configurations, and the versions to serve."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from polymux.serving.config_file import read_config
from polymux.serving.errors import ModelLoadError
from polymux.serving.model_config_pb2 import ModelConfig

__all__ = ["ModelFiles", "scan"]

_VERSION = re.compile(r"[1-9][0-9]{0,17}")
_PLATFORMS = ("", "onnxruntime_onnx")
_BACKENDS = ("", "onnxruntime")


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """One model directory.

    Attributes
    ----------
    name : str
        Name of the directory, and of the model.
    config : ModelConfig
        As written in ``config.pbtxt``; empty when there is none.
    versions : mapping of int to pathlib.Path
        Model file of each version that the version policy serves, least version first.
    error : str or None
        Why nothing of this model can be served.
    """

    name: str
    config: ModelConfig
    versions: dict[int, Path]
    error: str | None = None


def scan(root: Path) -> list[ModelFiles]:
    """List the models of a repository, in the order of their names.

    A model is a directory ``NAME`` with a directory for each version, whose name is a positive integer, that holds
    ``model.onnx`` (or what ``default_model_filename`` says), and may have a ``config.pbtxt``. Plain files and
    directories whose name starts with a dot are no models.

    Raises
    ------
    NotADirectoryError
        When `root` is not a directory.
    """
    if not root.is_dir():
        raise NotADirectoryError(f"the model repository {root} is not a directory")
    directories = [path for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")]
    return [_scan_model(path) for path in sorted(directories)]


def _scan_model(directory: Path) -> ModelFiles:
    name = directory.name
    try:
        path = directory / "config.pbtxt"
        config = read_config(path) if path.exists() else ModelConfig()
        _check_kind(name, config)
        return ModelFiles(name, config, _choose_versions(directory, config))
    except ModelLoadError as error:
        return ModelFiles(name, ModelConfig(), {}, str(error))
    except OSError as error:
        return ModelFiles(name, ModelConfig(), {}, f"the directory cannot be read: {error}")


def _check_kind(name: str, config: ModelConfig) -> None:
    if config.name not in ("", name):
        raise ModelLoadError(
            f"config.pbtxt says name: '{config.name}' but the directory is '{name}'; "
            "remove the name or make the two equal"
        )
    if config.platform not in _PLATFORMS:
        raise ModelLoadError(
            f"platform '{config.platform}' is not supported; serve ONNX models (onnxruntime_onnx)"
        )
    if config.backend not in _BACKENDS:
        raise ModelLoadError(f"backend '{config.backend}' is not supported; serve ONNX models (onnxruntime)")
    if config.model_transaction_policy.decoupled:
        raise ModelLoadError("model_transaction_policy.decoupled is not supported; set it to false")


def _choose_versions(directory: Path, config: ModelConfig) -> dict[int, Path]:
    filename = config.default_model_filename or "model.onnx"
    if Path(filename).name != filename:
        raise ModelLoadError(f"default_model_filename '{filename}' must be a file name without a directory")
    found = {
        int(path.name): path / filename
        for path in directory.iterdir()
        if path.is_dir() and _VERSION.fullmatch(path.name)
    }
    if not found:
        raise ModelLoadError(f"no version directory; put the model at {directory.name}/1/{filename}")
    return {version: found[version] for version in sorted(_by_policy(set(found), config))}


def _by_policy(found: set[int], config: ModelConfig) -> set[int]:
    policy = config.version_policy
    choice = policy.WhichOneof("policy_choice")
    if choice == "all":
        return found
    if choice == "specific":
        wanted = set(policy.specific.versions)
        if missing := sorted(wanted - found):
            raise ModelLoadError(f"version_policy.specific names versions that are not there: {missing}")
        if not wanted:
            raise ModelLoadError("version_policy.specific names no version")
        return wanted
    count = max(1, policy.latest.num_versions)
    return set(sorted(found)[-count:])
