"""Which models are cut into parts, how finely, and their parts as kernels of the core."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from polymux.client import Client
from polymux.client.model_versions import register_versions, wanted_versions, widest_share
from polymux.core.errors import InvalidRequest, PolymuxError
from polymux.core.implementation import OnnxModel
from polymux.onnxgraph.inputs import ItemInput
from polymux.onnxgraph.partition.choose import Wish
from polymux.onnxgraph.partition.partition import Partition, partition
from polymux.process_folder import ProcessFolder
from polymux.serving.config_check import PARTITION
from polymux.serving.errors import ModelLoadError
from polymux.serving.model_config_pb2 import ModelConfig
from polymux.serving.registered_model import RegisteredModel
from polymux.serving.signature import ModelSignature

__all__ = ["Cutter", "PartitionChoice", "parse_partition"]

_log = logging.getLogger(__name__)

_FORMS = "off, auto, a number of parts such as 8, or a longest part such as 5ms"
_LONGEST = re.compile(r"(\d+(?:\.\d+)?|\.\d+)ms")


@dataclass(frozen=True, slots=True)
class PartitionChoice:
    """One ``--partition``: for a model, or for all of which nothing else is said.

    Attributes
    ----------
    model : str or None
        None: all models.
    wish : Wish or None
        None: it is not cut.
    """

    model: str | None
    wish: Wish | None


def parse_partition(text: str) -> PartitionChoice:
    """Read ``[MODEL=]off|auto|PARTS|LONGESTms``.

    Raises
    ------
    InvalidRequest
        If it is none of these.
    """
    model, equals, value = text.rpartition("=")
    if equals and not model:
        raise InvalidRequest(f"{text!r}: no model before the '='; write VALUE or MODEL=VALUE")
    return PartitionChoice(model or None, _wish(text, value))


class Cutter:
    """Cuts the models that are to be cut, once each; their files stay until `close`.

    Parameters
    ----------
    choices : sequence of PartitionChoice
        From flags: those for one model win over its ``config.pbtxt``, those for all lose against it.

    Notes
    -----
    A model that cannot be cut runs whole, and the log says why. The files of a version that was replaced stay too: its
    parts may still run, and a version that comes back is not cut again; they take as much of `TMPDIR` as the model
    does, once for each version. `Lifecycle` loads one model at a time, which is why nothing is locked here.
    """

    def __init__(self, choices: Sequence[PartitionChoice] = ()) -> None:
        self._wishes: Mapping[str | None, Wish | None] = {choice.model: choice.wish for choice in choices}
        self._folder: ProcessFolder | None = None
        self._done: dict[Hashable, Partition] = {}

    def check_models(self, known: Sequence[str]) -> None:
        """Refuse flags for models that nobody serves.

        Raises
        ------
        InvalidRequest
            With their names, and those of the models that there are.
        """
        if unknown := sorted(model for model in self._wishes if model is not None and model not in known):
            raise InvalidRequest(
                f"--partition is for {', '.join(unknown)}, which is not in the repository; its models are"
                f" {', '.join(known) or 'none'}"
            )

    def cut(self, client: Client, name: str, model: RegisteredModel, path: Path) -> RegisteredModel:
        """Cut a model and register its parts, where that is wanted and possible.

        Parameters
        ----------
        client : Client
        name : str
            The model, without its version.
        model : RegisteredModel
            The whole.
        path : pathlib.Path
            Its file.

        Returns
        -------
        RegisteredModel
            With parts, or as it was.

        Raises
        ------
        ModelLoadError
            For a parameter in its configuration that cannot be read.
        """
        wish = self._wish_for(name, model.config)
        if wish is None:
            return model
        try:
            threads = 1 if wish.longest_ns is not None else _cores(client)
            found = self._partition(path, model.signature, wish, bool(wanted_versions(client)), threads)
            if found.why_whole:
                raise InvalidRequest(found.why_whole)
            parts = tuple(
                register_versions(
                    client,
                    f"{model.spec.name}/part-{number}",
                    OnnxModel(str(part.path), optimized=not found.portable),
                    part.plain,
                )
                for number, part in enumerate(found.parts, 1)
            )
        except (PolymuxError, OSError) as error:
            _log.warning("model %s runs whole: %s", model.spec.name, error)
            return model
        _log.info("model %s is cut into %s", model.spec.name, _described(found, threads))
        return replace(model, parts=parts)

    def decline(self, name: str, config: ModelConfig, why: str) -> None:
        """Say that a model stays uncut, where it is to be cut.

        Raises
        ------
        ModelLoadError
            When that was wished for this very model, by a flag or in its configuration.
        """
        wish = self._wish_for(name, config)
        if wish is None:
            return
        if name in self._wishes or PARTITION in config.parameters:
            raise ModelLoadError(
                f"it is to be cut into parts, which it cannot be: {why}; take the wish for parts out, or serve it"
                " without marked layers"
            )
        _log.warning("model %s is not cut into parts: %s", name, why)

    def close(self) -> None:
        """Remove the files; calling it again is fine."""
        if self._folder is not None:
            self._folder.close()
            self._folder = None
        self._done.clear()

    def _wish_for(self, name: str, config: ModelConfig) -> Wish | None:
        if name in self._wishes:
            return self._wishes[name]
        if PARTITION in config.parameters:
            text = config.parameters[PARTITION].string_value
            try:
                return _wish(text, text)
            except InvalidRequest as error:
                raise ModelLoadError(f"parameter {PARTITION!r} in config.pbtxt: {error}") from None
        return self._wishes.get(None)

    def _partition(
        self, path: Path, signature: ModelSignature, wish: Wish, portable: bool, threads: int
    ) -> Partition:
        inputs = _inputs(signature)
        status = path.stat()
        key = (path, status.st_mtime_ns, status.st_size, inputs, wish, portable, threads)
        if key not in self._done:
            self._folder = self._folder or ProcessFolder()
            folder = self._folder.new()
            self._done[key] = partition(path, inputs, wish, folder, threads=threads, portable=portable)
        return self._done[key]


def _wish(text: str, value: str) -> Wish | None:
    if value == "off":
        return None
    if value == "auto":
        return Wish()
    if value.isascii() and value.isdecimal():
        return Wish(parts=int(value))
    if found := _LONGEST.fullmatch(value):
        return Wish(longest_ns=float(found[1]) * 1e6)
    raise InvalidRequest(f"{text!r}: {value!r} says not how to cut; give {_FORMS}")


def _inputs(signature: ModelSignature) -> tuple[ItemInput, ...]:
    """Say what the inputs of one item look like.

    Raises
    ------
    InvalidRequest
        If an extent other than the batch is free: then nobody knows what to measure.
    """
    inputs = []
    for name, tensor in signature.inputs.items():
        if tensor.model_shape is None or None in tensor.model_shape[1:]:
            raise InvalidRequest(
                f"input {name!r} has extents that are free, so that nobody knows how long its nodes take; give them as"
                " dims in config.pbtxt"
            )
        shape = tuple(1 if extent is None else extent for extent in tensor.model_shape)
        inputs.append(ItemInput(name, tensor.dtype.to_numpy(), shape, None))
    return tuple(inputs)


def _cores(client: Client) -> int:
    """Say on how many cores a model will run at most: what a cut costs counts most where the whole takes least."""
    return max(1, min(widest_share(client), len(os.sched_getaffinity(0))))


def _described(found: Partition, threads: int) -> str:
    same = "with the same results bit by bit" if found.difference == 0 else f"within {found.difference:.0e}"
    text = (
        f"{len(found.parts)} parts of at most {found.longest_ns / 1e6:.2f} of {found.total_ns / 1e6:.2f} ms on"
        f" {'one core' if threads == 1 else f'{threads} cores'}, {same}"
    )
    return f"{text}; {found.note}" if found.note else text
