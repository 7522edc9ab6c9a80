"""The wheel holds everything that an installation needs, and works without the source tree."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import sys
sys.path[:0] = sys.argv[1:]
import numpy as np
import polymux
assert polymux.__file__.startswith(sys.argv[1]), polymux.__file__
with polymux.connect(start=True) as client, client.queue() as queue:
    x, y = queue.array(np.arange(5, dtype=np.float32)), queue.zeros(5, np.float32)
    queue.submit("saxpy", [x, y], [y], a=2.0).wait(30)
    assert y.numpy().tolist() == [0, 2, 4, 6, 8]
from polymux.perfmodel import tables
assert tables.surface("v100", "resnet50").max_batch == 32
print("works")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    options = ["--quiet", "--no-deps", "--no-build-isolation", f"--config-settings=build-dir={folder}/build"]
    command = [sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, env=environment, stdin=subprocess.DEVNULL)
    (built,) = folder.glob("*.whl")
    return built


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_wheel_holds_the_libraries_the_header_all_licences_and_no_tests(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    needed = {"lib/libpolymux.so", "lib/libpolymux_kernels.so", "bin/polymux-cbench", "include/polymux.h"}
    assert {f"polymux/{name}" for name in needed} <= names
    assert any(name.startswith("polymux/segment/_core.") for name in names)
    licences = {name.rpartition("/")[2] for name in names if "dist-info/licenses/" in name}
    assert licences == {"LICENSE", "LICENSE-latency_v100.txt"}
    assert [name for name in names if name.startswith(("tests/", "cpp/"))] == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_installed_wheel_runs_a_task_without_the_source_tree(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    paths = [str(tmp_path / "site"), sysconfig.get_path("purelib")]
    command = [sys.executable, "-S", "-c", PROGRAM, *paths]  # -S: without the editable installation
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert (ran.returncode, ran.stdout) == (0, "works\n"), ran.stderr
