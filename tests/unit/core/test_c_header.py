"""The numbers of the C interface and those of this package are the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from polymux.core.dtype import DType
from polymux.core.kernel_spec import MAX_ARGS_NBYTES
from polymux.core.status import TaskStatus
from polymux.core.task_view import MAX_BUFFERS, MAX_RANK, Access

HEADER = (Path(__file__).parents[3] / "include" / "polymux.h").read_text(encoding="utf-8")


def enumerated(name: str) -> dict[str, int]:
    body = re.search(rf"typedef enum {name} \{{(.*?)\}}", HEADER, re.DOTALL)
    assert body is not None, f"enum {name} is not in the header"
    return {key: int(value) for key, value in re.findall(r"POLYMUX_(\w+) = (\d+)", body[1])}


def defined(name: str) -> int:
    found = re.search(rf"#define {name} (\d+)", HEADER)
    assert found is not None, f"{name} is not in the header"
    return int(found[1])


def test_every_task_status_has_its_number_in_the_header() -> None:
    of_tasks = {name: value for name, value in enumerated("polymux_status").items() if value < 100}
    assert of_tasks == {status.name: status.value for status in TaskStatus}


def test_every_element_type_has_its_number_in_the_header() -> None:
    assert enumerated("polymux_dtype") == {dtype.name: dtype.value for dtype in DType}


@pytest.mark.parametrize("access", Access)
def test_access_modes_have_their_bits_in_the_header(access: Access) -> None:
    assert re.search(rf"POLYMUX_{access.name} = {access.value}\b", HEADER)


def test_limits_of_a_task_are_those_of_the_header() -> None:
    assert defined("POLYMUX_MAX_BUFFERS") == MAX_BUFFERS
    assert defined("POLYMUX_MAX_ARGUMENTS") == MAX_ARGS_NBYTES
    assert defined("POLYMUX_MAX_DIMENSIONS") == MAX_RANK
