"""Lines of progress where there is no terminal."""

from __future__ import annotations

import pytest

from polymux.cli.progress_lines import ProgressLines


def test_a_line_comes_every_ten_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    now_s = 100.0
    lines = ProgressLines(lambda: now_s)
    for now_s in (101.0, 110.5, 111.0, 120.0, 121.0):
        lines.tell("spacetime: simulating", int(now_s), 1000)
    assert capsys.readouterr().err == "spacetime: simulating: 11 %\nspacetime: simulating: 12 %\n"
