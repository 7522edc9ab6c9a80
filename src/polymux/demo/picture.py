"""Draws the timeline: a lane for each stream, arrows for migrations, one migration enlarged, latencies below."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator

from polymux.demo.heat import APPLICATION
from polymux.demo.timeline import COPIES, OTHER, Arrow, Timeline

__all__ = ["DARK", "LIGHT", "Theme", "draw", "settings"]


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours of a picture.

    Attributes
    ----------
    paper, ink, faint, band : str
        Background; text and arrows; lines; every second device's background.
    owners : mapping of str to str
        Colour of each application and model.
    """

    paper: str
    ink: str
    faint: str
    band: str
    owners: Mapping[str, str]


# M. Okabe, K. Ito, "Color universal design" (2008): told apart by colour-blind people too.
LIGHT = Theme(
    paper="#ffffff",
    ink="#1a1a1a",
    faint="#c8c8c8",
    band="#f3f4f6",
    owners={
        APPLICATION: "#d55e00",
        "detect_text": "#0072b2",
        "read_text": "#56b4e9",
        "name_file_type": "#009e73",
        "hear_speech": "#cc79a7",
        COPIES: "#7f7f7f",
        OTHER: "#b8b8b8",
    },
)
DARK = Theme(
    paper="#14171c",
    ink="#e8e8e8",
    faint="#4a4f57",
    band="#1d2128",
    owners={
        **LIGHT.owners,
        APPLICATION: "#ff7f2a",
        "detect_text": "#3f9be0",
        "read_text": "#8fd0f7",
        "name_file_type": "#2cc295",
        "hear_speech": "#e79bc4",
        COPIES: "#a0a0a0",
    },
)

_NAMES = {
    APPLICATION: "heat, the numerical application",
    "detect_text": "finding text in pictures",
    "read_text": "reading text",
    "name_file_type": "naming file types",
    "hear_speech": "hearing speech",
    COPIES: "copying data to and from a device",
    OTHER: "other, such as bringing results home",
}
_TITLE = "Who ran where and when: four models over HTTP, and an application that moves between devices"
_SIZE_INCHES = (14.0, 9.0)
_DPI = 100
_ZOOM_S = 0.25
"""Shown before and after a migration."""
_BAR_HEIGHT = 0.72
# Least width of a bar, as a part of the axes' width: what takes microseconds is to be seen too. Copies are few.
_LEAST_TASK, _LEAST_COPY = 0.0002, 0.0015


def draw(timeline: Timeline, theme: Theme, path: Path, heading: str = "") -> None:
    """Draw a timeline into a file.

    Parameters
    ----------
    timeline : Timeline
    theme : Theme
    path : Path
        Its suffix gives the format, ``.png`` or ``.svg``.
    heading : str
        What came out, in a sentence, for a picture that stands alone; without it, the picture has no title either.
    """
    with mpl.rc_context(settings(theme)):
        figure = Figure(figsize=_SIZE_INCHES, dpi=_DPI, facecolor=theme.paper)
        FigureCanvasAgg(figure)
        lanes = max(1, len(timeline.lanes))
        whole, enlarged, latency = figure.subplots(
            3, 1, height_ratios=(lanes, lanes, 0.75 * lanes), gridspec_kw={"hspace": 0.42}
        )
        figure.subplots_adjust(left=0.115, right=0.985, top=0.89 if heading else 0.96, bottom=0.12)
        if heading:
            figure.text(0.012, 0.968, _TITLE, fontsize=16, fontweight="bold", va="center")
            figure.text(0.012, 0.935, heading, fontsize=10.5, va="center")
        _draw_lanes(whole, timeline, theme, 0.0, timeline.length_s)
        whole.set_title("The whole run: each bar is a task", **_title())
        _draw_enlarged(enlarged, timeline, theme)
        _draw_latencies(latency, timeline, theme)
        _draw_legend(figure, timeline, theme)
        figure.savefig(path, facecolor=theme.paper)


def _draw_lanes(axes: Any, timeline: Timeline, theme: Theme, begin_s: float, end_s: float) -> None:
    for index, lane in enumerate(timeline.lanes):
        if sorted({other.device for other in timeline.lanes}).index(lane.device) % 2 == 0:
            axes.axhspan(index - 0.5, index + 0.5, color=theme.band, zorder=0, linewidth=0)
    for owner in timeline.owners():
        least_s = (end_s - begin_s) * (_LEAST_COPY if owner == COPIES else _LEAST_TASK)
        for index in range(len(timeline.lanes)):
            spans = [
                (piece.start_s, max(least_s, piece.end_s - piece.start_s))
                for piece in timeline.slices
                if piece.owner == owner
                and piece.lane == index
                and piece.end_s >= begin_s
                and piece.start_s <= end_s
            ]
            place, colour = (index - _BAR_HEIGHT / 2, _BAR_HEIGHT), theme.owners[owner]
            axes.broken_barh(
                spans, place, facecolors=colour, linewidth=0, snap=False, rasterized=True, zorder=2
            )
    for arrow in timeline.arrows:
        if begin_s <= arrow.at_s <= end_s:
            _draw_arrow(axes, arrow, theme)
    axes.set_yticks(
        range(len(timeline.lanes)), [_lane_name(lane.device, lane.name) for lane in timeline.lanes]
    )
    axes.set_ylim(max(1, len(timeline.lanes)) - 0.5, -0.5)
    axes.set_xlim(begin_s, end_s)
    axes.set_xlabel("time in s")
    axes.grid(axis="x", color=theme.faint, linewidth=0.5, zorder=1)


def _draw_arrow(axes: Any, arrow: Arrow, theme: Theme) -> None:
    colour = theme.ink if arrow.owner == APPLICATION else theme.owners[arrow.owner]
    axes.annotate(
        "",
        xy=(arrow.at_s, arrow.target),
        xytext=(arrow.at_s, arrow.source),
        arrowprops={"arrowstyle": "-|>", "color": colour, "linewidth": 1.4, "shrinkA": 0, "shrinkB": 0},
        zorder=4,
    )


def _draw_enlarged(axes: Any, timeline: Timeline, theme: Theme) -> None:
    """Draw what happens around the migration in the middle of the run, or the middle itself without any."""
    middle = timeline.length_s / 2
    moves = timeline.migrations
    at_s = min((arrow.at_s for arrow in moves), key=lambda at: abs(at - middle), default=middle)
    _draw_lanes(axes, timeline, theme, at_s - _ZOOM_S, at_s + _ZOOM_S)
    what = "One migration enlarged" if moves else "Half a second enlarged"
    axes.set_title(what, **_title())


def _draw_latencies(axes: Any, timeline: Timeline, theme: Theme) -> None:
    for arrow in timeline.migrations:
        axes.axvline(arrow.at_s, color=theme.ink, linewidth=0.8, linestyle=(0, (2, 2)), zorder=1)
    for model in dict.fromkeys(request.model for request in timeline.requests):
        mine = [request for request in timeline.requests if request.model == model]
        axes.scatter(
            [request.end_s for request in mine],
            [request.latency_ms for request in mine],
            s=5,
            color=theme.owners[model],
            linewidths=0,
            rasterized=True,
            zorder=2,
        )
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(numticks=8))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_ylabel("ms")
    axes.set_xlabel("time in s")
    axes.set_xlim(0.0, timeline.length_s)
    axes.grid(color=theme.faint, linewidth=0.5, zorder=0)
    axes.set_title("Each request over HTTP: time from sending to answer (dashed: migrations)", **_title())


def _draw_legend(figure: Figure, timeline: Timeline, theme: Theme) -> None:
    shown: list[Any] = [
        Patch(facecolor=theme.owners[owner], label=_NAMES[owner]) for owner in timeline.owners()
    ]
    if timeline.migrations:
        shown.append(_arrow_sample(theme.ink, "heat is migrated on command"))
    if finding := [arrow for arrow in timeline.arrows if arrow.owner != APPLICATION]:
        colour = theme.owners[finding[0].owner]
        shown.append(_arrow_sample(colour, "a queue goes where its kernel is"))
    figure.legend(handles=shown, loc="lower center", ncols=-(-len(shown) // 2), frameon=False, fontsize=9.5)


def _arrow_sample(colour: str, label: str) -> Line2D:
    return Line2D([], [], color=colour, marker="$↓$", markersize=11, linestyle="none", label=label)


def _lane_name(device: str, lane: str) -> str:
    stream = lane.removeprefix(f"stream {device}/")
    return f"{device}  stream {stream}" if stream != lane else f"{device}  {lane}"


def _title() -> dict[str, Any]:
    return {"loc": "left", "fontsize": 11, "pad": 5}


def settings(theme: Theme) -> Any:
    """Return matplotlib's settings for a theme."""
    return {
        "svg.hashsalt": "polymux",
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans"],
        "font.size": 9.5,
        "text.color": theme.ink,
        "axes.labelcolor": theme.ink,
        "axes.edgecolor": theme.faint,
        "axes.facecolor": theme.paper,
        "xtick.color": theme.ink,
        "ytick.color": theme.ink,
        "xtick.major.size": 3,
        "ytick.major.size": 0,
    }
