"""A benchmark's table shows value, baseline, ratio, target and verdict, also on a narrow terminal."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from polymux.bench.report import Report, Row

ROWS = (
    Row("native kernel, awake", 0.2112, "us", 0.1056, "bare ring", "<= 2.0 x", True),
    Row("one queue", 7_634_000.0, "/s", 12_345_678.0, "bare ring", ">= 3 M", False),
    Row("memory", 1234.5, "KiB"),
)


def printed(width: int) -> list[str]:
    out = io.StringIO()
    report = Report("roundtrip", "one empty task", ROWS, {"native_us": 0.2112}, ("pinned",))
    report.print(Console(file=out, width=width))
    return out.getvalue().splitlines()


def test_every_figure_stands_beside_its_baseline_ratio_and_target() -> None:
    lines = printed(100)
    cells = [re.split(r" {2,}", line.strip()) for line in lines]
    assert ["native kernel, awake", "0.211 us", "bare ring 0.106", "2.00", "<= 2.0 x", "met"] in cells
    assert ["one queue", "7.63 M /s", "bare ring 12.3 M", "0.62", ">= 3 M", "missed"] in cells
    assert ["memory", "1,234 KiB"] in cells
    assert any("pinned" in line for line in lines)


def test_the_table_fits_eighty_columns() -> None:
    lines = printed(80)
    assert not any("…" in line for line in lines)


@pytest.mark.parametrize(
    ("value", "shown"), [(0.0, "0"), (99.94, "99.9"), (100.0, "100"), (2.5e9, "2.5e+03 M")]
)
def test_numbers_keep_three_digits(value: float, shown: str) -> None:
    out = io.StringIO()
    Report("x", "y", (Row("z", value, "u"),), {}).print(Console(file=out, width=100))
    assert f"{shown} u" in out.getvalue()
