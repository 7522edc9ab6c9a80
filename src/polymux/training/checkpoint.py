"""Checkpoint files: whole or not there, and read without running code from them.

A checkpoint is written beside its place and then renamed, so that a reader, or a restart after a crash, finds either
the old one or the new one.
"""

from __future__ import annotations

import contextlib
import os
import pickle
from pathlib import Path
from typing import Any

import torch

from polymux.core.errors import PolymuxError

FORMAT = 1
_PARTIAL = "partial"


class BadCheckpoint(PolymuxError):
    """A checkpoint that cannot be read, or is not of this model.

    Parameters
    ----------
    path : str
    problem : str
        What is wrong and what would be right.
    """

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(path, problem)
        self.path = path
        self.problem = problem

    def __str__(self) -> str:
        return f"checkpoint {self.path}: {self.problem}"


def write_checkpoint(path: Path, contents: dict[str, Any]) -> None:
    """Write a checkpoint in place of what is there.

    Parameters
    ----------
    path : Path
    contents : dict
        Tensors, numbers, texts, and tuples, lists and dictionaries of them.

    Raises
    ------
    OSError
        When it cannot be written, such as for lack of space; what was there before stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.{_PARTIAL}")
    try:
        with partial.open("wb") as file:
            torch.save({"format": FORMAT, **contents}, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        if isinstance(error, RuntimeError):  # how torch.save says that a write failed
            raise OSError(f"{path}: the checkpoint cannot be written: {error}") from error
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the new name, too, survives a power failure
    finally:
        os.close(folder)


def read_checkpoint(path: Path) -> dict[str, Any] | None:
    """Read a checkpoint.

    Returns
    -------
    dict or None
        None when there is none.

    Raises
    ------
    BadCheckpoint
        When the file is no checkpoint of `polymux.training`.
    OSError
        When it cannot be read.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return None
    try:
        with file:
            contents = torch.load(file, map_location="cpu", weights_only=True)
    except (RuntimeError, OSError, EOFError, KeyError, ValueError, pickle.UnpicklingError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise BadCheckpoint(
            str(path), f"it is damaged or no PyTorch file ({reason}); restore it, delete it or name another"
        ) from error
    if not isinstance(contents, dict) or not isinstance(contents.get("format"), int):
        raise BadCheckpoint(str(path), "it is a PyTorch file of something else; name another path")
    if contents["format"] != FORMAT:
        raise BadCheckpoint(
            str(path),
            f"it has format {contents['format']}, this version reads {FORMAT}; delete it or name another",
        )
    return contents


def remove_leftovers(path: Path) -> None:
    """Delete what processes that were killed while they wrote this checkpoint have left."""
    for partial in path.parent.glob(f"{path.name}.*.{_PARTIAL}"):
        owner = partial.name[len(path.name) + 1 : -len(_PARTIAL) - 1]
        if owner.isdecimal() and not Path(f"/proc/{owner}").exists():
            with contextlib.suppress(OSError):
                partial.unlink()
