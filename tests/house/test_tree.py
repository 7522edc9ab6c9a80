"""What holds for the whole tree: short files, one version number, documented commands."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LONGEST_FILE_LINES = 400
FOLDERS = ("src", "cpp", "include", "tests", "tools", "examples")
SUFFIXES = {".py", ".c", ".h", ".cpp", ".hpp", ".cl"}
GENERATED = ("_pb2.py",)


def _sources() -> list[Path]:
    found = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))
    return [path for path in found if path.suffix in SUFFIXES and not path.name.endswith(GENERATED)]


def test_no_source_file_is_longer_than_400_lines() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in _sources()}
    assert {name: length for name, length in lengths.items() if length > LONGEST_FILE_LINES} == {}


def test_no_file_or_folder_has_a_name_that_says_nothing() -> None:
    empty = {"utils", "util", "helpers", "helper", "manager", "common", "misc"}
    assert [
        path for path in _sources() if {part.split(".")[0] for part in path.relative_to(ROOT).parts} & empty
    ] == []


def test_the_version_is_the_same_everywhere() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    newest = re.search(r"^## (?:\[)?([\d.]+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert version("polymux") == declared
    assert newest is not None
    assert newest[1] == declared


def test_make_without_a_target_lists_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text()
    (phony,) = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    listed = subprocess.run(["make", "-s"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {line.split()[0] for line in listed.splitlines()} == set(phony.split())


def test_the_check_of_every_change_is_an_executable_script_that_bash_can_read() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", str(script)], check=True)
