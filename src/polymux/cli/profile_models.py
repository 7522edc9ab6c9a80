"""Which models ``polymux profile`` measures: files, folders, repositories, samples."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TypeVar

from polymux.core.errors import ConfigError
from polymux.profiling.model import ModelSource
from polymux.profiling.samples import PREFIX, find_sample, write_sample

Shapes = dict[str, tuple[int | str, ...]]
Values = dict[str, tuple[float, float]]

_Option = TypeVar("_Option")
_EXTENT = re.compile(r"[1-9][0-9]*|N")


def shape_option(text: str) -> tuple[str, tuple[int | str, ...]]:
    """Read ``NAME=Nx3x224x224``, or ``NAME=scalar``."""
    name, equals, shape = text.rpartition("=")
    extents = [] if shape == "scalar" else shape.split("x")
    if not (name and equals and all(map(_EXTENT.fullmatch, extents))) or extents.count("N") > 1:
        raise argparse.ArgumentTypeError(
            f"{text!r}; write it like NAME=Nx3x224x224, with N where the batch is"
        )
    return name, tuple(extent if extent == "N" else int(extent) for extent in extents)


def values_option(text: str) -> tuple[str, tuple[float, float]]:
    """Read ``NAME=LOW..HIGH``, or ``NAME=VALUE``."""
    name, _, values = text.rpartition("=")
    low, dots, high = values.partition("..")
    try:
        limits = float(low), float(high if dots else low)
    except ValueError:
        limits = 1.0, 0.0
    if not name or not -inf < limits[0] <= limits[1] < inf:
        raise argparse.ArgumentTypeError(f"{text!r}; write it like NAME=0..255 or NAME=16000")
    return name, limits


def find_models(
    given: Sequence[str], shapes: Shapes, values: Values, name: str | None, folder: Path
) -> tuple[list[ModelSource], list[str]]:
    """Find the models to measure.

    Parameters
    ----------
    given : sequence of str
        Files, folders, and samples as ``sample:NAME``.
    shapes, values : dict
        Of inputs, by ``MODEL:INPUT``; ``INPUT`` alone does for a single model.
    name : str, optional
        Of a single model.
    folder : pathlib.Path
        Where samples are written.

    Returns
    -------
    models : list of ModelSource
    problems : list of str
        What cannot be measured, and why.

    Raises
    ------
    ConfigError
        If something is not there, or holds no model.
    """
    found: list[ModelSource] = []
    problems: list[str] = []
    for word in given:
        if word.startswith(PREFIX):
            found.append(_sample(word.removeprefix(PREFIX), folder))
        elif Path(word).is_dir():
            models, bad = _directory(Path(word))
            if not models and not bad:
                remedy = "give a model, a folder of .onnx files, or a model repository (NAME/1/model.onnx)"
                raise ConfigError(word, "models", "none", remedy)
            found += models
            problems += bad
        else:
            path = Path(word)
            found.append(ModelSource(_name(path), path))
    if name is not None:
        if len(found) + len(problems) != 1:
            raise ConfigError("command line", "--name", name, "give it for one model at a time")
        found = [replace(its, name=name) for its in found]
    its_shapes, its_values = _by_model(found, shapes), _by_model(found, values)
    return [
        replace(
            its, shapes={**its.shapes, **its_shapes[its.name]}, values={**its.values, **its_values[its.name]}
        )
        for its in found
    ], problems


def _by_model(found: Sequence[ModelSource], given: Mapping[str, _Option]) -> dict[str, dict[str, _Option]]:
    """Give each model what is meant for its inputs: ``MODEL:INPUT``, or ``INPUT`` when there is only one."""
    sorted_out: dict[str, dict[str, _Option]] = {its.name: {} for its in found}
    for word, value in given.items():
        model, colon, name = word.partition(":")
        if colon and model in sorted_out:
            sorted_out[model][name] = value
        elif len(found) == 1:
            sorted_out[found[0].name][word] = value
        else:
            names = ", ".join(sorted_out) or "none"
            remedy = (
                f"with several models say which one has the input, as MODEL:INPUT; the models are {names}"
            )
            raise ConfigError("command line", "input", word, remedy)
    return sorted_out


def _sample(name: str, folder: Path) -> ModelSource:
    sample = find_sample(name)
    return ModelSource(name, write_sample(name, folder / f"{name}.onnx"), sample.shapes, sample.values)


def _name(path: Path) -> str:
    """Name a model by its file, or by its folder in a repository."""
    if path.stem == "model":
        parents = [parent.name for parent in path.resolve().parents[:2]]
        return next((parent for parent in parents if parent and not parent.isdecimal()), path.stem)
    return path.stem


def _directory(root: Path) -> tuple[list[ModelSource], list[str]]:
    files = sorted(path for path in root.iterdir() if path.suffix == ".onnx" and path.is_file())
    if files:
        return [ModelSource(_name(path), path) for path in files], []
    try:
        from polymux.serving.model_config_pb2 import ModelConfig
        from polymux.serving.repository import scan
    except ModuleNotFoundError as error:
        remedy = f"needs the package {error.name}: pip install 'polymux[serve]'"
        raise ConfigError(str(root), "model repository", "cannot be read", remedy) from error

    def shapes(config: ModelConfig) -> Mapping[str, tuple[int | str, ...]]:
        """Shapes that the configuration fixes entirely."""
        batch: tuple[int | str, ...] = ("N",) if config.max_batch_size > 0 else ()
        return {
            tensor.name: (*batch, *tensor.dims)
            for tensor in config.input
            if tensor.dims and min(tensor.dims) > 0 and not tensor.HasField("reshape") and batch
        }

    models, problems = [], []
    for its in scan(root):
        if its.error is not None:
            problems.append(f"{its.name}: {its.error}")
        elif its.versions:
            models.append(ModelSource(its.name, its.versions[max(its.versions)], shapes(its.config)))
    return models, problems
