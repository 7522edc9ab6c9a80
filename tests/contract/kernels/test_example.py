"""examples/kernels as its first lines say: a server with both kernels files, and the program that draws."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "examples" / "kernels"


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Of programs that find a server with the example's kernels."""
    variables = os.environ | {"POLYMUX_SOCKET": str(tmp_path / "socket"), "COLUMNS": "200"}
    polymux = [sys.executable, "-m", "polymux.cli"]
    up = [*polymux, "up", "--detach", "--kernels", "kernels.py", "--kernels", "kernels.toml"]
    subprocess.run(up, cwd=FOLDER, env=variables, check=True, capture_output=True, timeout=60)
    try:
        yield variables
    finally:
        subprocess.run([*polymux, "down"], env=variables, check=True, capture_output=True, timeout=60)


def test_the_example_draws_the_same_picture_on_all_devices(environment: dict[str, str]) -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "polymux.cli", "kernels", "mandelbrot"],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout
    assert "stay within |z| <= 2" in shown
    pictures = [
        subprocess.run(
            [sys.executable, "draw.py", *device],
            cwd=FOLDER,
            env=environment,
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        ).stdout
        for device in ([], ["cpu:0"], *([["opencl:0"]] if "opencl:0" in shown else []))
    ]
    assert len(set(pictures)) == 1
    assert len(pictures[0].splitlines()) == 36
    assert pictures[0].count("@") > 500
