"""Compile the pure modules that simulations spend their time in, with mypyc: `make fast`.

Usage: python tools/compile_pure.py FOLDER

Writes the compiled modules and a manifest of what they were compiled from (see `polymux.compiled`) into the folder,
then checks that every policy decides the same with them as without. Takes half a minute of processor time.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from polymux.compiled import MANIFEST, PACKAGE, digest, usable

GROUPS = (
    "policy/serving/spacetime/*.py",
    "policy/serving/*.py",
    "sched/serving/*.py",
    "sim/serving/simulation.py",
    "sim/serving/*_driver.py",
    "sim/serving/tally.py",
    "sim/serving/requests.py",
    "sim/serving/batch_time.py",
    "core/serving/view.py",
)
LEFT_OUT = {"__init__.py", "interface.py", "registry.py", "recording.py", "replay.py"}
CHECK = """
import hashlib, sys
from dataclasses import replace
from polymux.bench.simulate import _scenario
from polymux.compiled import is_used
from polymux.policy.serving import registry
from polymux.sim.serving import simulate
for name in registry.POLICIES:
    scenario = replace(_scenario(1.0), keep_spans=True, noise=0.05)
    print(name, hashlib.sha256(repr(simulate(registry.load(name), scenario).spans).encode()).hexdigest())
print("compiled" if is_used() else "sources", file=sys.stderr)
"""


def main(folder: Path) -> None:
    """Compile, write the manifest, check."""
    if usable(folder, PACKAGE):
        print("the compiled modules are up to date")
        return
    shutil.rmtree(folder, ignore_errors=True)
    found = [
        file for pattern in GROUPS for file in sorted(PACKAGE.glob(pattern)) if file.name not in LEFT_OUT
    ]
    sources = [str(file.relative_to(PACKAGE)) for file in found]
    print(f"compiling {len(sources)} modules", flush=True)
    build(folder, sources)
    library = folder / "lib"
    files = {str(file.relative_to(library)): file for file in library.rglob("*.so")}
    modules = {
        name.partition(".")[0].replace("/", "."): str(file.relative_to(folder))
        for name, file in files.items()
    }
    manifest = {
        "python": sys.implementation.cache_tag,
        "sources": {source: digest(PACKAGE / source) for source in sources},
        "modules": modules,
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1))
    print("checking that every policy decides the same", flush=True)
    if decisions("on") != decisions("off"):
        (folder / MANIFEST).unlink()
        sys.exit("a policy decides differently when it is compiled: the compiled modules are not used")
    print(f"{len(sources)} modules are used compiled until one of their sources changes")


def build(folder: Path, sources: list[str]) -> None:
    """Compile modules of the package into `folder`/lib."""
    from mypyc.build import mypycify
    from setuptools import Distribution

    os.chdir(PACKAGE.parent)
    flags = [
        "--strict",
        "--ignore-missing-imports",
        "--follow-imports=silent",
        f"--cache-dir={folder / 'cache'}",
    ]
    paths = [f"polymux/{source}" for source in sources]
    extensions = mypycify([*flags, *paths], opt_level="3", target_dir=str(folder / "c"))
    command = Distribution({"name": "polymux", "ext_modules": extensions}).get_command_obj("build_ext")
    command.build_lib, command.build_temp = str(folder / "lib"), str(folder / "objects")
    command.ensure_finalized()
    command.run()


def decisions(compiled: str) -> str:
    """What every policy decides about the same requests, as digests; in a process of its own."""
    environment = os.environ | {"POLYMUX_COMPILED": compiled}
    done = subprocess.run(
        [sys.executable, "-c", CHECK], env=environment, check=True, capture_output=True, text=True
    )
    assert ("compiled" in done.stderr) == (compiled == "on"), done.stderr
    return done.stdout


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
