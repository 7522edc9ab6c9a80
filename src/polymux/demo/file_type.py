"""Naming a file's type from its first and last bytes, as Magika does.

References
----------
Y. Fratantonio et al., "Magika: AI-powered content-type detection", ICSE 2025.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from polymux.demo.inference import Infer
from polymux.demo.packages import package_file

__all__ = ["FileTypes", "features"]


@dataclass(frozen=True, slots=True)
class FileTypes:
    """What the model's answers mean.

    Attributes
    ----------
    labels : tuple of str
        Name of each class.
    beginning_nbytes, end_nbytes : int
        Bytes that the model sees of a file's beginning and end.
    block_nbytes : int
        Bytes read at either end, before white space at the outer edge is taken off.
    padding : int
        Stands where a file has no byte.
    """

    labels: tuple[str, ...]
    beginning_nbytes: int
    end_nbytes: int
    block_nbytes: int
    padding: int

    @classmethod
    def of_package(cls) -> FileTypes:
        """Read the configuration that comes with the model; raises `DemoFailed` without its package."""
        config = json.loads(package_file("magika", "magika/models/standard_v3_3/config.min.json").read_text())
        return cls(
            tuple(config["target_labels_space"]),
            config["beg_size"],
            config["end_size"],
            config["block_size"],
            config["padding_token"],
        )

    def name(self, file: Path, infer: Infer) -> str:
        """Return the label of a file's likeliest type; one inference of ``name_file_type``."""
        (classes,) = infer("name_file_type", {"bytes": features(file, self)[np.newaxis]}).values()
        return self.labels[int(classes[0].argmax())]


def features(file: Path, types: FileTypes) -> NDArray[np.int32]:
    """Return what the model sees of a file: bytes of its beginning, then of its end, int32, padded in the middle."""
    with file.open("rb") as opened:
        beginning = opened.read(types.block_nbytes)
        opened.seek(max(0, file.stat().st_size - types.block_nbytes))
        end = opened.read(types.block_nbytes)
    beginning = beginning.lstrip()[: types.beginning_nbytes]
    end = end.rstrip()[-types.end_nbytes :]
    seen = np.full(types.beginning_nbytes + types.end_nbytes, types.padding, np.int32)
    seen[: len(beginning)] = np.frombuffer(beginning, np.uint8)
    seen[len(seen) - len(end) :] = np.frombuffer(end, np.uint8)
    return seen
