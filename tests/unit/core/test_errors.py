"""Errors carry their values, say them in words, and survive a trip between processes."""

from __future__ import annotations

import pickle

import pytest

from polymux.core import errors
from polymux.core.errors import (
    BadDecision,
    ConfigError,
    DeviceUnavailable,
    InvalidRequest,
    OutputTooSmall,
    PolymuxError,
    TaskFailed,
    request_failed,
    task_failed,
)
from polymux.core.status import TaskStatus

CHILDREN = [
    value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, PolymuxError)
]
FAILURES = [status for status in TaskStatus if status is not TaskStatus.OK]


@pytest.mark.parametrize("status", FAILURES)
def test_each_failure_has_a_class_of_its_own_that_keeps_all_values(status: TaskStatus) -> None:
    error = task_failed(status, "3.0", 17, "saxpy", "x has 4 elements, y has 5")
    assert type(error) is not TaskFailed
    assert sum(type(task_failed(other, "3.0", 17, "k", "m")) is type(error) for other in FAILURES) == 1
    assert (error.code, error.queue, error.sequence, error.kernel) == (status, "3.0", 17, "saxpy")
    for part in ("17", "3.0", "saxpy", status.name, "x has 4 elements, y has 5"):
        assert part in str(error)


def test_a_status_from_a_newer_server_still_makes_an_error_that_names_it() -> None:
    error = task_failed(99, "3.0", 1, "k", "something new")
    assert type(error) is TaskFailed
    assert "99" in str(error)
    assert "something new" in str(error)


def test_a_task_that_ended_well_has_no_error() -> None:
    with pytest.raises(ValueError, match="ended with OK"):
        task_failed(TaskStatus.OK, "3.0", 1, "k", "")


@pytest.mark.parametrize(
    "error",
    [
        task_failed(TaskStatus.KERNEL_CRASHED, "3.0", 17, "saxpy", "signal 11"),
        ConfigError("polymux.toml", "spin_ns", "-1", "give 0 or more"),
        DeviceUnavailable("no OpenCL platform"),
        InvalidRequest("shape (-1,)"),
        BadDecision("Bind", "no such stream", ("0 ns: opened",)),
    ],
)
def test_an_error_is_the_same_after_pickling(error: PolymuxError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert copy.args == error.args


@pytest.mark.parametrize("error", CHILDREN)
def test_a_server_reply_that_names_any_error_gives_an_error_with_its_message(
    error: type[PolymuxError],
) -> None:
    assert "the reason" in str(request_failed(error.__name__, "the reason"))


@pytest.mark.parametrize(
    "name", ["Closed", "PermissionDenied", "InvalidRequest", "SegmentFull", "DeviceUnavailable"]
)
def test_a_server_reply_gives_the_class_that_it_names(name: str) -> None:
    assert type(request_failed(name, "m")).__name__ == name


def test_a_server_reply_with_an_unknown_name_keeps_that_name() -> None:
    assert str(request_failed("QuotaExceeded", "too much")) == "QuotaExceeded: too much"
    assert type(request_failed("SystemExit", "m")) is PolymuxError


def test_an_invalid_request_can_be_caught_as_a_value_error() -> None:
    with pytest.raises(ValueError, match="wrong"):
        raise InvalidRequest("wrong")


def test_a_configuration_error_names_file_key_value_and_remedy() -> None:
    text = str(ConfigError("polymux.toml", "spin_ns", -1, "give 0 or more"))
    assert text == "polymux.toml: spin_ns = -1: give 0 or more"


def test_a_bad_decision_tells_the_story() -> None:
    text = str(BadDecision("Bind(x)", "no such stream", ("1 ns: opened", "2 ns: bound")))
    assert text.splitlines() == [
        "no such stream: Bind(x)",
        "what happened before:",
        "  1 ns: opened",
        "  2 ns: bound",
    ]


def test_an_output_that_is_too_small_says_which_and_how_large_it_has_to_be() -> None:
    text = "output 'mask' has shape (9,) and needs 72 bytes; the buffer has 8 (shape (1,)); give a buffer of 72 bytes"
    error = task_failed(TaskStatus.OUTPUT_TOO_SMALL, "3.0", 1, "k", text)
    assert isinstance(error, OutputTooSmall)
    assert (error.output, error.needed_nbytes) == ("mask", 72)
    copied = pickle.loads(pickle.dumps(error))
    assert (copied.output, copied.needed_nbytes) == ("mask", 72)


def test_an_output_that_is_too_small_without_numbers_is_still_an_error() -> None:
    error = task_failed(TaskStatus.OUTPUT_TOO_SMALL, "3.0", 1, "k", "no room")
    assert isinstance(error, OutputTooSmall)
    assert (error.output, error.needed_nbytes) == (None, None)
