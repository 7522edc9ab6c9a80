"""`polymux plan`: what it prints, its exit code, and options that cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from polymux.cli import main
from polymux.profiles import ProfileStore
from polymux.profiles.identity import DeviceIdentity
from polymux.profiles.records import Grid, Point, ProfiledModel

WORKLOAD = """\
[simulation]
duration_s = 1

[[device]]
kind = "gpu"
shares = [25, 50, 100]

[[model]]
name = "a"
slo_ms = 100
rate_per_s = 400
surface = [{ share = [50, 100], batch = [1, 16], latency_ms = [[6, 24], [4, 16]] }]
"""


@pytest.fixture
def workload(tmp_path: Path) -> str:
    path = tmp_path / "workload.toml"
    path.write_text(WORKLOAD)
    return str(path)


def test_a_plan_that_is_met_exits_with_0(workload: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", workload]) == 0
    assert "1 × gpu, checked by simulation" in capsys.readouterr().out


def test_json_is_all_that_is_printed_and_has_the_options(
    workload: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "plan",
        workload,
        "--json",
        "--policy",
        "unscheduled",
        "--attainment",
        "0.9",
        "--load",
        "0.1",
    ]
    assert main([*arguments, "--duration", "0.5", "--seed", "3"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["policy"], plan["attainment"], plan["met"]) == ("unscheduled", 0.9, True)
    assert plan["models"]["a"]["rate_per_s"] == pytest.approx(40)


def test_a_plan_that_is_not_found_exits_with_1_and_draws_what_there_is(
    workload: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "plan.png"
    arguments = ["plan", workload, "--limit", "gpu=1", "--load", "20", "--picture", str(picture)]
    assert main(arguments) == 1
    out = capsys.readouterr().out
    assert "no plan found" in out
    assert f"wrote {picture}" in out
    assert picture.stat().st_size > 5_000


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--limit", "gpu"], "--limit gpu: give KIND=N"),
        (["--limit", "gpu=-1"], "--limit gpu=-1: give KIND=N"),
        (["--limit", "tpu=1"], "no devices of kind 'tpu'"),
        (["--load", "0"], "--load 0.0: give more than 0"),
        (["--load", "nan"], "--load nan: give more than 0"),
        (["--duration", "0"], "--duration 0.0: give more than 0"),
        (
            ["--duration", "1000000", "--load", "10"],
            "more than 20,000,000; give a shorter --duration, or --no-check",
        ),
        (["--seed", "-1"], "--seed -1: give 0 or more"),
        (["--attainment", "99"], "attainment is 99.0"),
        (["--policy", "nobody"], "serving policy 'nobody' is unknown"),
        (["--policy", "unscheduled=x"], "it was given 'x'"),
    ],
)
def test_options_that_cannot_be_are_told(
    workload: str, arguments: list[str], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", workload, *arguments]) == 1
    assert what in capsys.readouterr().err


def test_a_workload_that_cannot_be_is_told_with_file_key_and_value(
    workload: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(workload).write_text(WORKLOAD.replace("slo_ms = 100", "slo_ms = 1"))
    assert main(["plan", workload]) == 1
    told = capsys.readouterr().err
    assert "workload.toml" in told
    assert "slo_ms" in told


def test_models_can_be_planned_by_their_own_profiles(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = DeviceIdentity("cpu", "Some processor", 4)
    store = tmp_path / "profiles.db"
    with ProfileStore(store, write=True) as profiles:
        model = ProfiledModel(f"sha256:{'m':0>64}", "measured", weight_nbytes=1000)
        profiles.put_device(here)
        profiles.put_model(model)
        profiles.put_grid(model.key, here.key, Grid((1, 4), (1, 4)))
        for units in (1, 4):
            for batch in (1, 4):
                time_ns = 8_000_000 * batch // units
                point = Point(units, batch, 10, time_ns, time_ns, time_ns, time_ns, 0, 0.95)
                profiles.put_point(model.key, here.key, point)
    path = tmp_path / "own.toml"
    named = 'profile = "measured"\nname = "mine"\nslo_ms = 50\nrate_per_s = 300'
    path.write_text(f'[simulation]\nduration_s = 1\n[[device]]\nprofile = "cpu"\n[[model]]\n{named}\n')
    assert main(["plan", str(path), "--store", str(store), "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["met"] is True
    assert list(plan["devices"]) == [here.key]
    assert main(["plan", str(path), "--store", str(tmp_path / "none.db")]) == 1
    assert "none.db" in capsys.readouterr().err
