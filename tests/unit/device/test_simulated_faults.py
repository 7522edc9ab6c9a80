"""Faults that a simulated device is told to have: when they come, how many, and what the file may say."""

from __future__ import annotations

from typing import Any

import pytest

from polymux.core.errors import ConfigError
from polymux.core.status import TaskStatus
from polymux.device.protocol import LaunchError, OutOfMemory
from polymux.device.simulated_faults import FaultModel, Faults
from polymux.device.simulated_model import parse_model


def launches(model: FaultModel, *kernels: str) -> list[bool]:
    faults = Faults("simulated:0", model)
    return [faults.launch(kernel)[1] is None for kernel in kernels]


def test_a_device_that_is_told_nothing_never_fails() -> None:
    faults = Faults("simulated:0", FaultModel())
    for _ in range(100):
        assert faults.launch("gemm") == (0, None)
        faults.copy()
        faults.allocate(10)


def test_launches_fail_after_some_have_succeeded_and_as_often_as_told() -> None:
    model = FaultModel(launches_after=2, launches=3)
    assert launches(model, *["k"] * 7) == [True, True, False, False, False, True, True]
    assert launches(FaultModel(launches_after=1), *["k"] * 4) == [True, False, False, False]


def test_launches_of_one_kernel_are_counted_by_themselves() -> None:
    model = FaultModel(launches_after=1, kernel="gemm")
    assert launches(model, "copy", "gemm", "copy", "gemm", "copy", "gemm") == [
        True,
        True,
        True,
        False,
        True,
        False,
    ]


def test_an_error_names_device_and_launch() -> None:
    faults = Faults("simulated:3", FaultModel(launches_after=0))
    _, error = faults.launch("gemm")
    assert isinstance(error, LaunchError)
    assert error.code is TaskStatus.DEVICE_FAILED
    assert error.message == "simulated:3 failed as its description says: launch 1 of it"


def test_copies_fail_and_work_again() -> None:
    faults = Faults("simulated:0", FaultModel(copies_after=1, copies=1))
    faults.copy()
    with pytest.raises(LaunchError, match="copy 2"):
        faults.copy()
    faults.copy()


def test_one_allocation_is_refused() -> None:
    faults = Faults("simulated:0", FaultModel(allocation=2))
    faults.allocate(10)
    with pytest.raises(OutOfMemory, match="cannot allocate 20 bytes"):
        faults.allocate(20)
    faults.allocate(20)


def test_one_launch_hangs() -> None:
    faults = Faults("simulated:0", FaultModel(hang_launch=2, hang_ns=5))
    assert [faults.launch("k")[0] for _ in range(3)] == [0, 5, 0]


def test_the_file_says_which() -> None:
    table = {"memory_nbytes": 1, "faults": {"launches_after": 3, "kernel": "gemm", "allocation": 2}}
    assert parse_model("d.toml", table).faults == FaultModel(launches_after=3, kernel="gemm", allocation=2)
    assert parse_model("d.toml", {"memory_nbytes": 1}).faults == FaultModel()


@pytest.mark.parametrize(
    ("faults", "key"),
    [
        ({"launches_after": -1}, "faults.launches_after"),
        ({"launches": 0}, "faults.launches"),
        ({"allocation": "third"}, "faults.allocation"),
        ({"kernel": ""}, "faults.kernel"),
        ({"hang_ns": -5}, "faults.hang_ns"),
        ({"explode": True}, "faults.explode"),
    ],
)
def test_what_cannot_be_is_refused_by_name(faults: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_model("d.toml", {"memory_nbytes": 1, "faults": faults})
    assert caught.value.key == key
