"""Finds the compiled copies of pure modules, where `make fast` has made them and nothing has changed since.

Compiled by mypyc they do the same several times faster. Some call each other directly, so it is all of them or none:
when one source differs from what was compiled, or Python is another one, the sources run. ``POLYMUX_COMPILED=off`` in
the environment has the sources run in any case.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

MANIFEST = "manifest.json"
PACKAGE = Path(__file__).resolve().parent
FOLDER = PACKAGE.parents[1] / "build" / "fast"
"""Where `make fast` puts them, in a source tree."""


class CompiledModules(MetaPathFinder):
    """Answers imports of compiled modules.

    Parameters
    ----------
    files : mapping of str to Path
        By the full name of the module.
    """

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = files

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Find one of them; None for any other module."""
        file = self._files.get(fullname)
        return None if file is None else spec_from_file_location(fullname, file)


def digest(file: Path) -> str:
    """Identify the content of a source file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def usable(folder: Path, package: Path) -> dict[str, Path]:
    """Map the modules that can be used compiled to their files; empty when there are none, or they are out of date.

    Parameters
    ----------
    folder : Path
        With a manifest.
    package : Path
        With the sources.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        if manifest["python"] != sys.implementation.cache_tag:
            return {}
        for source, known in manifest["sources"].items():
            if digest(package / source) != known:
                return {}
        return {name: folder / file for name, file in manifest["modules"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def is_used() -> bool:
    """Whether compiled modules are in use."""
    return any(isinstance(finder, CompiledModules) for finder in sys.meta_path)


def use() -> None:
    """Have compiled modules imported from now on, where there are some."""
    if os.environ.get("POLYMUX_COMPILED") == "off" or is_used() or not (FOLDER / MANIFEST).exists():
        return
    files = usable(FOLDER, PACKAGE)
    if files:
        sys.meta_path.insert(0, CompiledModules(files))


use()
