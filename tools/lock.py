"""Write the lock file: the exact version of every package that `make venv` installs.

Usage: python tools/lock.py requirements.lock

What to lock stands in pyproject.toml: the dependencies, the build requirements, and `[tool.polymux.lock]`.
pip resolves it all at once; the packages under `without-dependencies` are added bare.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

HEADER = """\
# Every package of the development environment, pinned (Python 3.11, Linux x86_64).
# Made by `make lock` from pyproject.toml; installed by `make venv` without resolving.
# torch (the extra `train`) is not in it.
"""
ROOT = Path(__file__).resolve().parent.parent


def package_name(requirement: str) -> str:
    """Return the normalised package name of a requirement (PEP 503)."""
    name = re.split(r"[\s\[<>=!~;]", requirement, maxsplit=1)[0]
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(pyproject: dict) -> tuple[list[str], list[str]]:
    """Return the requirements to resolve and those to take without their dependencies."""
    project, lock = pyproject["project"], pyproject["tool"]["polymux"]["lock"]
    found = pyproject["build-system"]["requires"] + project["dependencies"]
    for extra in lock["extras"]:
        found = found + project["optional-dependencies"][extra]
    found = [line for line in found if package_name(line) != project["name"]]
    alone = set(lock["without-dependencies"])
    resolved = [line for line in found if package_name(line) not in alone]
    return resolved, [line for line in found if package_name(line) in alone]


def resolve(requirements: list[str], *options: str) -> list[str]:
    """Return `name==version` of everything that pip would install for some requirements."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
    report = subprocess.run(
        [*command, "--report", "-", *options, *requirements], check=True, stdout=subprocess.PIPE
    ).stdout
    packages = [entry["metadata"] for entry in json.loads(report)["install"]]
    return [f"{package_name(package['name'])}=={package['version']}" for package in packages]


def main(path: str) -> None:
    """Resolve the project's declared requirements and write the lock file."""
    resolved, alone = declared(tomllib.loads((ROOT / "pyproject.toml").read_text()))
    pins = resolve(resolved) + resolve(alone, "--no-deps")
    Path(path).write_text(HEADER + "".join(f"{pin}\n" for pin in sorted(set(pins))))
    print(f"{path}: {len(pins)} packages")


if __name__ == "__main__":
    main(*sys.argv[1:])
