"""The configuration file: sizes with units, and errors that name the key, the value and the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from polymux.core.errors import ConfigError
from polymux.server.config import Config, read_config


def read(folder: Path, text: str) -> Config:
    (folder / "polymux.toml").write_text(text)
    return read_config(folder / "polymux.toml")


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("67108864", 1 << 26), ('"64MiB"', 1 << 26), ('"1 GiB"', 1 << 30), ('"1.5 GiB"', 3 << 29), ('"1GB"', 10**9)],
)
def test_a_size_is_a_number_of_bytes_or_a_text_with_a_unit(tmp_path: Path, text: str, nbytes: int) -> None:
    assert read(tmp_path, f"[limits]\nmax_segment_nbytes = {text}").runtime.limits.max_segment_nbytes == nbytes


@pytest.mark.parametrize("text", ["1", "-1", "true", '"many"', '"1 XiB"', '"12"', "[]"])
def test_a_size_that_is_none_or_too_small_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"limits.segment_nbytes = .*give 33554432 bytes or more"):
        read(tmp_path, f"[limits]\nsegment_nbytes = {text}")


def test_the_usual_segment_may_not_exceed_the_largest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at most max_segment_nbytes"):
        read(tmp_path, '[limits]\nsegment_nbytes = "2 GiB"\nmax_segment_nbytes = "1 GiB"')


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    config = read(tmp_path, 'socket = "a.sock"\nrecord = "b.jsonl"')
    assert (config.socket, config.runtime.record) == (tmp_path / "a.sock", tmp_path / "b.jsonl")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("nonsense = 1", "nonsense = 1: no such setting; known are socket, devices"),
        ("[limits]\nnonsense = 1", "limits.nonsense = 1: no such setting; known are segment_nbytes"),
        ("devices = 'cpu'", "devices = 'cpu': give a list of texts"),
        ("policy = 3", "policy = 3: give a text"),
        ("allow_uids = [-1]", "allow_uids = .*give a list of user ids"),
        ("limits = 3", "limits = 3: write it as a table"),
        ("[limits]\nmax_clients = 0", "limits.max_clients = 0: give a whole number from 1"),
        ("devices = [", "TOML = .*correct the syntax"),
    ],
)
def test_a_wrong_setting_is_named_with_its_value_and_the_remedy(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        read(tmp_path, text)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="absent.toml.*cannot be read"):
        read_config(tmp_path / "absent.toml")
