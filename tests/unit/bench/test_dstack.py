"""The table of `polymux bench dstack`: the paper beside the expected and the computed figure, and the verdict."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from polymux.bench.dstack import FigureReport, _met, _result
from polymux.bench.dstack_figure import Figure, paper_model, relaxed

FIGURES = (
    Figure("three models, utilisation", "~86 %", 86.7, 84.2, "%"),
    Figure("three models, too little", "~86 %", 86.7, 84.0, "%"),
    Figure("overload", "", 82.0, 10.0, "%", "max_throughput", loose=True),
    Figure("spacetime sustains", "", None, 1414.2, "/s", "spacetime", at_least=1400),
)


def test_a_figure_is_met_within_three_per_cent_or_from_its_target_on():
    assert [_met(figure) for figure in FIGURES] == [True, False, None, True]
    assert _met(Figure("x", "", 0.0, 0.0)) is True
    assert _met(Figure("x", "", 0.0, 0.1)) is False


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_has_the_paper_beside_what_is_expected_and_computed(width):
    out = io.StringIO()
    report = FigureReport("dstack", "figures", (), [_result(figure) for figure in FIGURES], ("a note",))
    report.print(Console(file=out, width=width))
    lines = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    assert "three models, utilisation ~86 % 86.7 % 84.2 % +-3% met" in lines
    assert "three models, too little ~86 % 86.7 % 84 % +-3% missed" in lines
    assert "overload 82 % 10 %" in lines
    assert "spacetime sustains 1,414 /s >= 1400 /s met" in lines
    assert "a note" in lines


def test_the_paper_s_models_come_from_its_table():
    model = relaxed(paper_model("vgg19"), 2)
    assert (model.knee, model.slo_ns) == (50, 200_000_000)
    assert paper_model("mobilenet", knee=25).served().surfaces["v100"].latency_ns(25, 16) == 10_000_000
    assert paper_model("convnet1").slo_ns == 100_000_000
