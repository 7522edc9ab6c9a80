"""``polymux coexec`` as a person and a program see it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from polymux.cli import main

EXAMPLE = Path(__file__).parents[3] / "examples" / "coexec" / "paper.toml"
CONVOLUTION = """
[operation]
kind = "conv2d"
images = 32
in_channels = 64
out_channels = 128
height = 56
width = 56
kernel = 3
padding = 1
objective = { time = 1, energy = 0.001 }
[[unit]]
id = "cpu:0/conv"
gflops = 100
idle_w = 5
busy_w = 50
[[unit]]
id = "opencl:0/conv"
gflops = 80
idle_w = 5
busy_w = 40
"""


def results(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    assert main(["coexec", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def error(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["coexec", *map(str, arguments)]) == 1
    return capsys.readouterr().err


def test_the_example_is_split_over_all_units_near_what_is_possible(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = results(capsys, EXAMPLE, "--pareto")
    assert {part["unit"] for part in found["parts"]} == {"cpu:0/blas", "gpu:0/cuda", "gpu:1/tensor"}
    assert sum(part["count"] for part in found["parts"]) == 32768
    assert found["ideal_s"] < found["makespan_s"] < found["single_best_s"]
    energies = [point["energy_j"] for point in found["pareto"]]
    assert len(energies) > 2
    assert energies == sorted(energies, reverse=True)


def test_tables_name_units_and_what_was_simulated(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    picture = tmp_path / "split.png"
    assert main(["coexec", str(EXAMPLE), "--pareto", "--picture", str(picture), "--slow", "gpu:1=2@400"]) == 0
    out = capsys.readouterr().out
    for word in (
        "gpu:1/tensor",
        "predicted",
        "simulated",
        "possible",
        "best unit alone",
        "Time against energy",
    ):
        assert word in out
    assert picture.read_bytes()[:4] == b"\x89PNG"


def test_a_convolution_with_weights_and_the_other_solver(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "conv.toml"
    file.write_text(CONVOLUTION)
    closed, program = results(capsys, file), results(capsys, file, "--solver", "milp")
    assert closed["makespan_s"] == pytest.approx(program["makespan_s"], rel=0.02)
    assert len(closed["parts"]) == 2
    assert results(capsys, file, "--objective", "energy")["energy_j"] <= closed["energy_j"]


def test_a_unit_that_fails_is_named_and_the_others_do_its_work(capsys: pytest.CaptureFixture[str]) -> None:
    found = results(capsys, EXAMPLE, "--fail", "gpu:0/cuda@200")
    assert found["lost"] == ["gpu:0/cuda"]
    assert sum(part["computed"] for part in found["parts"]) == 32768


def test_units_that_round_more_than_allowed_are_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "exact.toml"
    file.write_text(EXAMPLE.read_text().replace('lowest = "fp16"', ""))
    assert results(capsys, file)["refused"] == ["gpu:1/tensor"]


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("m = 32768", "m = 0", "m"),
        ('kind = "gemm"', 'kind = "fft"', "conv2d"),
        ('lowest = "fp16"', 'lowest = "fp8"', "fp8"),
        ("gflops = 1336", "gflops = 0", "gflops"),
        ("tile = 8", "tyle = 8", "did you mean tile"),
        ("busy_w = 145", "busy_w = 1", "busy_w"),
        ("[operation]", "[oper", "TOML"),
        ("[operation]", "[operation]\nobjective = 'speed'", "speed"),
        ("[operation]", "[operation]\nobjective = { time = 0 }", "objective"),
        ("[operation]", "[[failure]]\nunit = 'x'\nat_ms = 1\n[operation]", "gpu:1/tensor"),
    ],
)
def test_a_wrong_file_is_told_with_the_place(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, old: str, new: str, told: str
) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text(EXAMPLE.read_text().replace(old, new, 1))
    message = error(capsys, file)
    assert told in message
    assert "wrong.toml" in message


@pytest.mark.parametrize(
    "options",
    [
        ("--slow", "gpu:0=fast@3"), ("--slow", "gpu:0"), ("--fail", "gpu:0/cuda"), ("--slow", "gpu:7=2@3"),
        ("--objective", "much"), ("--objective", "0,0"), ("--picture", "/nowhere/at/all.png"),
    ],
)  # fmt: skip
def test_wrong_options_are_told(capsys: pytest.CaptureFixture[str], options: tuple[str, str]) -> None:
    message = error(capsys, EXAMPLE, *options)
    assert message.startswith("polymux coexec: ")
    assert len(message) > 40
