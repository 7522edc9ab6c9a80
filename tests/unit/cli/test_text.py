"""Numbers as people read them, and tables that keep their numbers whole."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from polymux.cli.text import count, duration, percent, size, table


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (3 << 19, "1.5 MiB"), (1 << 40, "1.0 TiB")],
)
def test_sizes_have_a_unit(nbytes: int, text: str) -> None:
    assert size(nbytes) == text


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"),
        (9_999, "9999 ns"),
        (12_345, "12.3 us"),
        (12_345_678, "12.3 ms"),
        (59_000_000_000, "59 s"),
        (600_000_000_000, "10 min"),
        (3_700_000_000_000, "1 h 1 min"),
    ],
)
def test_times_have_a_unit(ns: int, text: str) -> None:
    assert duration(ns) == text


def test_counts_and_shares_are_short() -> None:
    assert count(1234567) == "1,234,567"
    assert percent(1, 4) == "25%"
    assert percent(1, 0) == "-"


def test_a_narrow_terminal_breaks_texts_and_not_the_first_column() -> None:
    made = table("T", ("id", "text", "number"), ("number",))
    made.add_row("opencl:0/0", "some words that are too long for it", "1,234")
    output = io.StringIO()
    Console(file=output, width=40).print(made)
    assert "opencl:0/0" in output.getvalue()
    assert "1,234" in output.getvalue()
