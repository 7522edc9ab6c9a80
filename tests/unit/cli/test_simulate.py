"""``polymux simulate`` as a person and a program see it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from polymux.cli import main

WORKLOAD = """
[simulation]
duration_s = 1
policies = ["unscheduled", "dstack"]
[[device]]
kind = "v100"
[[model]]
name = "mobilenet"
slo_ms = 25
rate_per_s = 200
[[model]]
name = "resnet50"
slo_ms = 50
rate_per_s = 40
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "two.toml"
    path.write_text(WORKLOAD)
    return path


def results(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    assert main(["simulate", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_table_names_policies_models_and_what_they_got(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", str(file)]) == 0
    out = capsys.readouterr().out
    for word in (
        "two: 2 models on 1 × v100",
        "unscheduled",
        "dstack",
        "mobilenet",
        "goodput",
        "p99.9",
        "Jain",
    ):
        assert word in out


def test_the_table_fits_into_eighty_columns(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polymux.cli.simulate.terminal", lambda: Console(highlight=False, width=80))
    assert main(["simulate", str(file)]) == 0
    out = capsys.readouterr().out
    assert max(len(line.rstrip()) for line in out.splitlines()) <= 80
    assert "…" not in out
    assert "unscheduled" in out


def test_the_json_adds_up_and_is_the_same_every_time(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = results(capsys, file)
    assert list(found["policies"]) == ["unscheduled", "dstack"]
    for policy in found["policies"].values():
        models = policy["models"].values()
        assert sum(model["offered"] for model in models) == policy["offered"] == found["offered"]
        for model in models:
            ends = ("answered", "refused", "failed", "unfinished")
            assert sum(model[end] for end in ends) == model["offered"]
        assert 0 < policy["utilisation"] <= 1
        assert policy["energy_j"] > 0
    assert results(capsys, file) == found
    assert results(capsys, file, "--seed", 7)["offered"] != found["offered"]


def test_options_replace_what_the_file_says(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = results(capsys, file, "--policy", "dstack")
    assert list(plain["policies"]) == ["dstack"]
    twice = results(capsys, file, "--policy", "dstack", "--load", 2)
    assert twice["offered"] == pytest.approx(2 * plain["offered"], rel=0.3)
    longer = results(capsys, file, "--policy", "dstack", "--duration", 3)
    assert longer["seconds"] == 3
    more = results(capsys, file, "--policy", "dstack", "--devices", 3)
    assert list(more["policies"]["dstack"]["devices"]) == ["v100:0", "v100:1", "v100:2"]


def test_picture_trace_and_recording_are_written(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture, trace, recording = (tmp_path / name for name in ("g.png", "t.json", "r.jsonl"))
    options = ("--gantt", picture, "--trace", trace, "--record", recording, "--policy", "dstack")
    assert main(["simulate", str(file), *map(str, options)]) == 0
    assert str(picture) in capsys.readouterr().out
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert json.loads(trace.read_text())["traceEvents"]
    assert main(["replay", str(recording)]) == 0
    assert "all decided as recorded" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--policy", "fifo"), "'fifo' is unknown"),
        (("--policy", "unscheduled=3"), "no option"),
        (("--devices", "0"), "--devices 0: give 1 or more"),
        (("--seed", "-1"), "--seed -1: give 0 or more"),
        (("--load", "0"), "--load 0.0: give more than 0"),
        (("--load", "nan"), "--load nan: give more than 0"),
        (("--duration", "-2"), "--duration -2.0: give more than 0"),
        (("--from", "-1", "--gantt", "x.png"), "--from -1.0: give 0"),
        (("--span", "0", "--gantt", "x.png"), "--span 0.0: give more than 0"),
        (("--record", "x.jsonl"), "there are 2 policies"),
        (("--gantt", "/nonexistent/x.png"), "/nonexistent/x.png"),
        (("--trace", "/nonexistent/x.json"), "/nonexistent/x.json"),
        (("--gantt", "x.txt"), "x.txt"),
    ],
)
def test_an_option_that_cannot_be_is_told(
    file: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], problem: str
) -> None:
    assert main(["simulate", str(file), *options]) == 1
    assert problem in capsys.readouterr().err


def test_a_bad_workload_is_told_in_one_line(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(WORKLOAD.replace("rate_per_s = 40", "rate_per_s = -40"))
    assert main(["simulate", str(file)]) == 1
    assert "two.toml: model[1].rate_per_s = -40: give a number from 0" in capsys.readouterr().err
    assert main(["simulate", str(file.with_name("none.toml"))]) == 1
    assert "none.toml" in capsys.readouterr().err
