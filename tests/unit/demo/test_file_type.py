"""What Magika sees of a file, and what it says about the files of the installed packages."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from polymux.demo.file_type import FileTypes, features
from polymux.demo.files import LABELS, Files, sample
from polymux.demo.inference import Reference

TYPES = FileTypes(("a", "b"), beginning_nbytes=4, end_nbytes=4, block_nbytes=8, padding=256)


@pytest.mark.parametrize(
    ("content", "seen"),
    [
        (b"0123456789", [48, 49, 50, 51, 54, 55, 56, 57]),
        (b"ab", [97, 98, 256, 256, 256, 256, 97, 98]),
        (b"  \nabcdefg \n", [97, 98, 99, 100, 100, 101, 102, 103]),
        (b"", [256] * 8),
    ],
    ids=["long", "short", "white space at the edges", "empty"],
)
def test_the_model_sees_both_ends_without_white_space_padded_in_the_middle(
    tmp_path: Path, content: bytes, seen: list[int]
) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    found = features(file, TYPES)
    assert found.dtype == np.int32
    assert found.tolist() == seen


def test_the_sample_has_many_kinds_of_files_and_is_the_same_each_time() -> None:
    files = sample()
    assert len({label for _, label in files}) >= 15
    assert {label for _, label in files} <= set(LABELS.values())
    assert files == sample()


def test_files_are_named_as_their_names_say() -> None:
    files = Files()
    reference = Reference(files.models)
    files.prepare(reference)
    left = iter(range(len(files._sample) - 1))
    files.work(0, reference, lambda _: next(left, None) is None, lambda _: None)
    same, right = files.findings()
    assert same.good
    assert right.good, right.result
