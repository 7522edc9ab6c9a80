"""Numbers as people read them, and tables that keep their numbers whole."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from polymux.cli.text import count, duration, percent, short_count, size, table


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (-0.2, "0 B"),
        (1023, "1023 B"),
        (1023.7, "1.0 KiB"),
        (1024, "1.0 KiB"),
        (3 << 19, "1.5 MiB"),
        (99.94 * 1024, "99.9 KiB"),
        (99.96 * 1024, "100 KiB"),
        (1023 << 20, "1023 MiB"),
        ((1 << 30) - 1, "1.0 GiB"),
        (1 << 40, "1.0 TiB"),
    ],
)
def test_sizes_have_a_unit(nbytes: int, text: str) -> None:
    assert size(nbytes) == text


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"),
        (-0.1, "0 ns"),
        (999, "999 ns"),
        (999.7, "1.0 us"),
        (9_999, "10.0 us"),
        (999_990, "1.0 ms"),
        (2_277_400_000, "2.3 s"),
        (9_990_000_000, "10 s"),
        (12_345, "12.3 us"),
        (12_345_678, "12.3 ms"),
        (59_000_000_000, "59 s"),
        (600_000_000_000, "10 min"),
        (3_700_000_000_000, "1 h 1 min"),
        (200_000_000_000_000, "2 d 7 h"),
    ],
)
def test_times_have_a_unit(ns: int, text: str) -> None:
    assert duration(ns) == text


def test_counts_and_shares_are_short() -> None:
    assert count(1234567) == "1,234,567"
    assert percent(1, 4) == "25%"
    assert percent(-0.001, 1) == "0%"
    assert percent(1, 0) == "-"


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (-0.3, "0"),
        (99_999, "99,999"),
        (100_000, "100 k"),
        (999_600, "1.0 M"),
        (12_345_678, "12.3 M"),
        (5e9, "5.0 G"),
        (7e12, "7.0 T"),
    ],
)
def test_counts_of_a_narrow_column_have_a_unit(number: float, text: str) -> None:
    assert short_count(number) == text


def test_a_narrow_terminal_breaks_texts_and_not_the_first_column() -> None:
    made = table("T", ("id", "text", "number"), ("number",))
    made.add_row("opencl:0/0", "some words that are too long for it", "1,234")
    output = io.StringIO()
    Console(file=output, width=40).print(made)
    assert "opencl:0/0" in output.getvalue()
    assert "1,234" in output.getvalue()
