"""Draws the split of a call over time: which unit computed which piece when."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from polymux.core.errors import ConfigError, InvalidRequest

if TYPE_CHECKING:
    from polymux.coexec.report import Report

FORMATS = (".png", ".svg", ".pdf")
_SETTINGS: Any = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "svg.hashsalt": "polymux",
}
_COLOURS = ("#3b6ea5", "#c8553d", "#4f9d69", "#8a5a9e", "#c9a227", "#5b7b8c", "#b05a7a", "#6b6b3a")
_LABELLED = 0.05
"""Part of the time axis that a piece needs to have its size written into it."""


def draw(report: Report, path: str | Path) -> None:
    """Write the picture of a call.

    Parameters
    ----------
    report : Report
        `Session.last`.
    path : str or Path
        Its ending says in what format: png, svg or pdf.

    Raises
    ------
    InvalidRequest
        If matplotlib is missing.
    ConfigError
        If the ending is unknown, or the file cannot be written.
    """
    target = Path(path)
    if target.suffix.lower() not in FORMATS:
        raise ConfigError(
            str(target), "picture", target.suffix or "no ending", f"end it with {', '.join(FORMATS)}"
        )
    try:
        import matplotlib as mpl
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise InvalidRequest(
            f"a picture needs the package {error.name}: pip install 'polymux[plan]'"
        ) from error
    units = sorted({run.unit for run in report.runs})
    with mpl.rc_context(_SETTINGS):
        figure = Figure(figsize=(9, 1.6 + 0.55 * len(units)), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        _bars(axes, report, units)
        try:
            figure.savefig(target, dpi=130, metadata={"Date": None} if target.suffix == ".svg" else None)
        except OSError as error:
            raise ConfigError(str(target), "picture", error.strerror or str(error), "name a file") from error


def _bars(axes: Any, report: Report, units: list[str]) -> None:
    begin_ns = min((run.taken_ns for run in report.runs), default=0)
    end_ms = max((run.end_ns - begin_ns for run in report.runs), default=0) / 1e6
    free: dict[str, int] = {}
    for run in sorted(report.runs, key=lambda run: run.end_ns):
        start_ns = max(run.taken_ns, free.get(run.unit, 0))
        free[run.unit] = run.end_ns
        left, width = (start_ns - begin_ns) / 1e6, (run.end_ns - start_ns) / 1e6
        row = units.index(run.unit)
        colour = _COLOURS[row % len(_COLOURS)]
        stolen = run.stolen_from is not None
        axes.barh(
            row,
            width,
            0.62,
            left=left,
            color=colour,
            edgecolor="white",
            linewidth=1,
            hatch="///" if stolen else None,
        )
        if width > _LABELLED * end_ms:
            axes.text(left + width / 2, row, f"{run.chunk.count:,}", ha="center", va="center", color="white")
    predicted_ms = report.predicted_s * 1e3
    axes.axvline(predicted_ms, color="#333333", linewidth=1, linestyle="--")
    axes.text(
        predicted_ms,
        -0.55,
        f"predicted {predicted_ms:,.1f} ms ",
        ha="right",
        va="bottom",
        color="#333333",
        fontsize=9,
    )
    axes.set_yticks(range(len(units)), units)
    axes.set_ylim(len(units) - 0.5, -0.95)
    axes.set_xlim(0, max(end_ms, predicted_ms) * 1.03 or 1)
    axes.set_xlabel(
        "time in ms; numbers: length of the piece along the axis; hatched: taken over from another unit"
    )
    sizes = " x ".join(f"{size:g}" for size in report.planned.plan.problem.sizes)
    axes.set_title(f"{report.operation} {sizes}: {end_ms:,.1f} ms, planned in {report.plan_s * 1e6:,.0f} us")
