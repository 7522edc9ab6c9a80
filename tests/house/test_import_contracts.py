"""The import contracts of pyproject.toml refuse what ARCHITECTURE.md forbids."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "import importlinter.cli; importlinter.cli.lint_imports_command()"


def _lint(tree: Path) -> subprocess.CompletedProcess[str]:
    # -S leaves out the editable installation, which would lead to this tree's sources instead of the copy's.
    command = [sys.executable, "-S", "-c", PROGRAM, "--no-cache", "--no-logo"]
    paths = os.pathsep.join([str(tree / "src"), sysconfig.get_path("purelib")])
    return subprocess.run(
        command, cwd=tree, env={"PYTHONPATH": paths}, capture_output=True, text=True, check=False
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    sources = shutil.ignore_patterns("__pycache__", "*.so", "lib", "bin", "include")
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=sources)
    return tmp_path


def test_the_sources_keep_the_contracts(tree: Path) -> None:
    checked = _lint(tree)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize(
    ("file", "source", "complaint"),
    [
        ("core/extra.py", "import polymux.sched", "polymux.core is not allowed to import polymux.sched"),
        (
            "policy/extra.py",
            "from polymux import server",
            "polymux.policy is not allowed to import polymux.server",
        ),
        (
            "device/extra.py",
            "import polymux.kernel",
            "polymux.device is not allowed to import polymux.kernel",
        ),
        (
            "client/extra.py",
            "import polymux.server",
            "polymux.client is not allowed to import polymux.server",
        ),
        ("demo/extra.py", "import polymux.bench", "polymux.demo is not allowed to import polymux.bench"),
        (
            "serving/extra.py",
            "import polymux.server",
            "polymux.serving is not allowed to import polymux.server",
        ),
        ("apps/extra.py", "import polymux.serving", "polymux.apps is not allowed to import polymux.serving"),
        (
            "apps/extra.py",
            "import polymux.device",
            "polymux.apps is not allowed to import polymux.device",
        ),
        ("utils/__init__.py", "", "polymux.utils"),
        ("sched/extra.py", "from time import monotonic_ns", "polymux.sched is not allowed to import time"),
        ("policy/extra.py", "import random", "polymux.policy is not allowed to import random"),
        (
            "core/extra.py",
            "def f():\n    import threading",
            "polymux.core is not allowed to import threading",
        ),
        ("core/extra.py", "import logging", "polymux.core is not allowed to import logging"),
    ],
)
def test_a_forbidden_import_is_reported(tree: Path, file: str, source: str, complaint: str) -> None:
    path = tree / "src" / "polymux" / file
    path.parent.mkdir(exist_ok=True)
    (path.parent / "__init__.py").touch()
    path.write_text(source + "\n")
    checked = _lint(tree)
    assert checked.returncode != 0
    assert complaint in checked.stdout
