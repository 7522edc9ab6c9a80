"""The lock file covers everything that pyproject.toml declares, and nothing that it leaves out."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCK_LINES = [line for line in (ROOT / "requirements.lock").read_text().splitlines() if line[:1] != "#"]


def _declared() -> list[Requirement]:
    project, locked = PYPROJECT["project"], PYPROJECT["tool"]["polymux"]["lock"]
    lines = PYPROJECT["build-system"]["requires"] + project["dependencies"]
    for extra in locked["extras"]:
        lines = lines + project["optional-dependencies"][extra]
    return [found for found in map(Requirement, lines) if found.name != project["name"]]


def _pins() -> dict[str, str]:
    return dict(line.split("==") for line in LOCK_LINES)


def test_every_line_is_one_exact_pin() -> None:
    assert [line for line in LOCK_LINES if not re.fullmatch(r"[a-z0-9-]+==[\w.+!]+", line)] == []
    assert len(_pins()) == len(LOCK_LINES)


@pytest.mark.parametrize("requirement", _declared(), ids=str)
def test_a_declared_dependency_is_pinned_to_a_version_that_it_allows(requirement: Requirement) -> None:
    pins = _pins()
    assert canonicalize_name(requirement.name) in pins, "run `make lock`"
    assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)], prereleases=True)


def test_every_extra_is_either_locked_or_left_out_on_purpose() -> None:
    extras = set(PYPROJECT["project"]["optional-dependencies"])
    assert extras - set(PYPROJECT["tool"]["polymux"]["lock"]["extras"]) == {"all", "train"}
    (everything,) = PYPROJECT["project"]["optional-dependencies"]["all"]
    apart = {"all", "demo-files"}  # the files' packages are to be taken without their dependencies
    assert Requirement(everything).extras == extras - apart


def test_torch_is_not_locked() -> None:
    assert "torch" not in _pins()
