"""Compiled modules are used only as long as they are what the sources say."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from polymux.compiled import MANIFEST, CompiledModules, digest, usable


@pytest.fixture
def package(tmp_path: Path) -> Path:
    package = tmp_path / "polymux"
    package.mkdir()
    for name in ("one", "two"):
        (package / f"{name}.py").write_text(f"NAME = {name!r}\n")
    return package


def built(package: Path, **values: object) -> Path:
    folder = package.parent / "fast"
    folder.mkdir(exist_ok=True)
    manifest = {
        "python": sys.implementation.cache_tag,
        "sources": {name: digest(package / name) for name in ("one.py", "two.py")},
        "modules": {"polymux.one": "lib/one.so", "polymux.two": "lib/two.so"},
    }
    (folder / MANIFEST).write_text(json.dumps(manifest | values))
    return folder


def test_all_are_used_when_nothing_has_changed(package: Path) -> None:
    folder = built(package)
    assert usable(folder, package) == {
        "polymux.one": folder / "lib/one.so",
        "polymux.two": folder / "lib/two.so",
    }


def test_none_is_used_when_one_source_has_changed_or_is_gone(package: Path) -> None:
    folder = built(package)
    (package / "two.py").write_text("NAME = 'three'\n")
    assert usable(folder, package) == {}
    (package / "two.py").unlink()
    assert usable(folder, package) == {}


@pytest.mark.parametrize("text", ["", "[]", "{}", "no JSON"])
def test_a_manifest_that_cannot_be_read_is_as_none(package: Path, text: str) -> None:
    folder = built(package)
    (folder / MANIFEST).write_text(text)
    assert usable(folder, package) == {}


def test_what_another_python_compiled_is_not_used(package: Path) -> None:
    assert usable(built(package, python="cpython-27"), package) == {}


def test_other_modules_are_found_as_always() -> None:
    finder = CompiledModules({"polymux.one": Path("one.so")})
    assert finder.find_spec("polymux.other", None) is None
    found = finder.find_spec("polymux.one", None)
    assert found is not None
    assert found.origin is not None
    assert Path(found.origin).name == "one.so"
