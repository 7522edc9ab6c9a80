"""Draws a profile: latency over the share, and the efficacy of every place as a heat map."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from polymux.core.errors import ConfigError
from polymux.perfmodel.efficacy import Optimum
from polymux.profiling.summary import Summary

FORMATS = (".png", ".svg", ".pdf")
_SETTINGS: Any = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
}
_MS = 1e6
_LABEL = 0.05
"""Height of a label, as a part of the axis."""


def draw(summary: Summary, path: Path) -> None:
    """Write the picture of a profile.

    Parameters
    ----------
    summary : Summary
        Of a finished profile.
    path : pathlib.Path
        Its ending says in what format: one of `FORMATS`.

    Raises
    ------
    ConfigError
        If the profile is not finished, or the file cannot be written.
    """
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(
            str(path), "picture", path.suffix or "no ending", f"end it with {', '.join(FORMATS)}"
        )
    if summary.surface is None:
        raise ConfigError(
            summary.model.name, "picture", "the profile is not finished", "run 'polymux profile' again"
        )
    with mpl.rc_context(_SETTINGS):
        figure = Figure(figsize=(11, 4.6), layout="constrained")
        FigureCanvasAgg(figure)
        left, right = figure.subplots(1, 2)
        _latency(left, summary)
        _efficacy(figure, right, summary)
        figure.suptitle(
            f"{summary.model.name} on {summary.device}", x=0.01, ha="left", fontsize=12, weight="bold"
        )
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, dpi=130)
        except OSError as error:
            raise ConfigError(
                str(path), "picture", error.strerror or str(error), "name another file"
            ) from error


def _latency(axes: Any, summary: Summary) -> None:
    """One line for each batch, with its confidence interval and its knee."""
    colors = mpl.colormaps["viridis"](np.linspace(0, 0.85, len(summary.grid.batches)))
    ends: list[float] = []
    for color, batch in zip(colors, summary.grid.batches, strict=True):
        points = [summary.points[units, batch] for units in summary.grid.units]
        times = [point.median_ns / _MS for point in points]
        widths = [point.half_width_ns / _MS for point in points]
        axes.errorbar(summary.grid.units, times, widths, color=color, marker="o", markersize=4, capsize=3)
        ends.append(times[-1])
        knee = summary.knees["derivative"][batch]
        at = summary.grid.units.index(knee)
        axes.plot(
            knee, times[at], marker="o", markersize=11, markerfacecolor="none", color=color, linestyle=""
        )
    axes.set_yscale("log")
    for color, batch, at_ms in zip(colors, summary.grid.batches, _apart(ends, axes.get_ylim()), strict=True):
        place = (summary.grid.units[-1], at_ms)
        axes.annotate(f"batch {batch}", place, (8, 0), textcoords="offset points", color=color, va="center")
    axes.set_xticks(summary.grid.units)
    axes.set_xlim(
        summary.grid.units[0] - 0.3, summary.grid.units[-1] + max(0.6, 0.2 * len(summary.grid.units))
    )
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("compute units")
    axes.set_ylabel("ms of a batch")
    confidence = next(iter(summary.points.values())).confidence
    axes.set_title(f"Latency over the share (median, {confidence:.0%} interval; ring: knee)")
    axes.grid(axis="y", which="both", alpha=0.25)


def _apart(times: list[float], limits: tuple[float, float]) -> list[float]:
    """Move labels on a logarithmic axis upwards so far that each can be read."""
    gap = (limits[1] / limits[0]) ** _LABEL
    places: list[float] = []
    for time in times:
        places.append(max(time, places[-1] * gap) if places else time)
    return places


def _efficacy(figure: Figure, axes: Any, summary: Summary) -> None:
    """Efficacy of each place relative to the best one."""
    grid = summary.grid
    values = np.array(
        [[summary.efficacy(units, batch) or 0.0 for batch in grid.batches] for units in grid.units]
    )
    values /= values.max()
    picture = axes.imshow(values, origin="lower", aspect="auto", cmap="viridis", vmin=0, vmax=1)
    for (row, column), value in np.ndenumerate(values):
        color = "white" if value < 0.6 else "black"
        axes.text(column, row, f"{value:.2f}", ha="center", va="center", color=color)
    _mark(axes, summary, summary.best, "tab:red", "largest", 0.94)
    _mark(axes, summary, summary.optimum, "tab:orange", "best for the demand", 0.82)
    axes.set_xticks(range(len(grid.batches)), map(str, grid.batches))
    axes.set_yticks(range(len(grid.units)), map(str, grid.units))
    axes.set_xlabel("batch")
    axes.set_ylabel("compute units")
    axes.set_title("Efficacy, of the largest")
    axes.spines[:].set_visible(False)
    figure.colorbar(picture, ax=axes)
    if axes.patches:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, frameon=False)


def _mark(axes: Any, summary: Summary, place: Optimum | None, color: str, label: str, side: float) -> None:
    if place is None:
        return
    grid = summary.grid
    column = float(np.interp(place.batch, grid.batches, range(len(grid.batches))))
    row = grid.units.index(place.units)
    corner = (column - side / 2, row - side / 2)
    frame = mpl.patches.Rectangle(corner, side, side, fill=False, ec=color, lw=2.5, label=label)
    axes.add_patch(frame)
