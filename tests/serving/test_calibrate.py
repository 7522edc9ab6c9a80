"""Calibrating as a user does: on a private server, twice, and on a device with memory of its own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from polymux.cli import main
from polymux.perfmodel.coexec.compute_fit import fit_compute
from polymux.perfmodel.coexec.features import Sample
from polymux.perfmodel.coexec.problem import gemm_problem
from polymux.profiles import CoexecUnit, ProfileStore
from polymux.profiles.coexec import BUSY, LEARNED, QUICK
from polymux.profiling.coexec.calibrate import _is_enough, calibrate
from polymux.profiling.coexec.records import CalibrationOptions, places
from polymux.profiling.private_server import PrivateServer


def units_of(path: Path, *arguments: str, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    assert main(["calibrate", "--quick", "--seconds", "0.5", "--json", "--store", str(path), *arguments]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["units"]
    return found


def test_a_calibration_is_stored_and_found_by_the_next_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "profiles.db"
    arguments = ("--device", "cpu", "--operation", "gemm")
    first = next(
        item for item in units_of(path, *arguments, capsys=capsys) if item["kernel"] == "coexec_gemm"
    )
    assert first["operations_per_s"] > 0
    assert first["scalars"]["method"] in (1, 2, 3)
    assert {"numpy", "onnxruntime"} <= set(first["compared"])
    assert main(["calibrate", "--quick", "--store", str(path), *arguments]) == 0
    printed = capsys.readouterr().out
    assert "coexec_gemm" in printed
    assert "in the store" in printed


@pytest.mark.parametrize("note", [QUICK, LEARNED])
def test_what_is_no_whole_calibration_does_not_spare_one(note: str) -> None:
    problem = gemm_problem(64, 64, 64, itemsize=4, by="rows")
    compute = fit_compute([Sample(problem.features(count), 1e-5 * count) for count in (16, 32, 64)])
    unit = CoexecUnit("coexec_gemm", 1, "f4", {}, "fp32", "BLAS", compute, notes=(note,))
    assert not unit.is_calibrated
    assert not _is_enough(unit, CalibrationOptions())
    assert _is_enough(unit, CalibrationOptions(quick=True)) == (note == QUICK)
    busy = replace(unit, notes=(BUSY,))
    assert busy.is_calibrated
    assert _is_enough(busy, CalibrationOptions())


def test_shares_and_copies_of_a_device_with_memory_of_its_own_are_measured(tmp_path: Path) -> None:
    options = CalibrationOptions(operations=("conv2d",), device_s=0.5, quick=True)
    with (
        PrivateServer(["cpu:0", "cpu,shares=nested"]) as server,
        server.connect("calibrate") as client,
        ProfileStore(tmp_path / "profiles.db", write=True) as store,
    ):
        found = [item for item in calibrate(client, store, options) if item.kernel == "coexec_conv2d"]
        offered = places(client)
    assert [(item.place.name) for item in found] == [place.name for place in offered]
    for item in found:
        assert item.unit is not None
        assert item.unit.units == item.place.units
        assert (item.unit.link is not None) == (item.place.device["memory"] == "own")
        assert item.unit.compute.predict(item.unit.compute.places[0].features) > 0
    link = found[0].unit.link
    assert link is not None
    assert link.in_s(1 << 24) > 0
    assert link.out_s(1 << 24) > 0


def test_what_cannot_be_calibrated_says_why(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = ["--store", str(tmp_path / "profiles.db"), "--device", "cpu", "--seconds", "-1"]
    assert main(["calibrate", *arguments]) == 1
    assert "give more than 0 s" in capsys.readouterr().err
