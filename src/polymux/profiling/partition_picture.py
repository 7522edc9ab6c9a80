"""Draws a model that was cut: its graph, one row for each part, and how long each part takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from polymux.core.errors import ConfigError
from polymux.onnxgraph.partition.comparison import Cost
from polymux.onnxgraph.partition.partition import Part, Partition
from polymux.profiling.picture import FORMATS

_SETTINGS: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
}
_KINDS = 7
"""Operators that have a colour of their own: those that take most time."""
_MS = 1e6
_ROW_INCHES = 0.62
_LARGEST, _SMALLEST, _LEGEND = 170.0, 7.0, 40.0
"""Areas of nodes and of those of the legend, in square points."""

Place = tuple[float, float]


def draw_partition(name: str, found: Partition, cost: Cost | None, path: Path) -> None:
    """Write the picture of a partition.

    Parameters
    ----------
    name : str
        Of the model.
    found : Partition
        A model that runs whole is one row.
    cost : Cost, optional
        Measured times of the parts; else those of their nodes are drawn.
    path : pathlib.Path
        Its ending says in what format: one of `polymux.profiling.picture.FORMATS`.

    Raises
    ------
    ConfigError
        If it is none of these, or the file cannot be written.
    """
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(
            str(path), "picture", path.suffix or "no ending", f"end it with {', '.join(FORMATS)}"
        )
    parts = found.parts or (Part(path, 0, len(found.flow.steps), (), (), found.total_ns),)
    with mpl.rc_context(_SETTINGS):
        figure = Figure(figsize=(13, 1.9 + _ROW_INCHES * len(parts)), layout="constrained")
        FigureCanvasAgg(figure)
        graph, times = figure.subplots(1, 2, sharey=True, width_ratios=(4, 1))
        _graph(graph, found, parts)
        _times(times, parts, cost)
        figure.suptitle(f"{name}: {_headline(found, cost)}", x=0.01, ha="left", fontsize=12, weight="bold")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, dpi=120)
        except OSError as error:
            raise ConfigError(
                str(path), "picture", error.strerror or str(error), "name another file"
            ) from error


def _headline(found: Partition, cost: Cost | None) -> str:
    if not found.parts:
        return "runs whole"
    text = f"{len(found.parts)} parts"
    if cost is not None:
        text += f", {cost.whole_ns / _MS:.1f} ms whole, {cost.added:+.1%} in parts"
    return text


def _graph(axes: Any, found: Partition, parts: tuple[Part, ...]) -> None:
    """One row of nodes for each part, from left to right as they depend on each other."""
    colors = _colors(found)
    longest = max(found.nodes.times_ns) or 1.0
    places: dict[int, Place] = {}
    for row, part in enumerate(parts):
        places.update(_places(found, part, row))
    width = max((x for x, _ in places.values()), default=0.0) or 1.0
    makers = {name: at for at, step in enumerate(found.flow.steps) for name in step.writes}
    for row, part in enumerate(parts):
        if row % 2 == 0:
            axes.axhspan(row - 0.5, row + 0.5, color="0.96", zorder=0, linewidth=0)
        for at in range(part.first, part.end):
            for maker in {makers[name] for name in found.flow.steps[at].reads if name in makers}:
                if maker >= part.first:
                    _edge(axes, places[maker], places[at])
    for kind, color in colors.items():
        its = [at for at in places if _kind(found, at, colors) == kind]
        areas = [_SMALLEST + (_LARGEST - _SMALLEST) * found.nodes.times_ns[at] / longest for at in its]
        xs, ys = [places[at][0] for at in its], [places[at][1] for at in its]
        axes.scatter(xs, ys, areas, color=color, label=kind, zorder=2, edgecolors="white", linewidths=0.4)
    for row, cut in enumerate(found.cuts):
        axes.annotate(
            _carried(found, cut.tensors), (width, row + 0.5), (0, 0), textcoords="offset points",
            ha="right", va="center", fontsize=7, color="tab:red", zorder=3,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0},
        )  # fmt: skip
        axes.axhline(row + 0.5, color="tab:red", linewidth=0.8, linestyle="--", zorder=1)
    axes.set_xlim(-0.02 * width, 1.02 * width)
    axes.set_ylim(len(parts) - 0.5, -0.5)
    axes.set_xticks([])
    axes.set_yticks(
        range(len(parts)), [f"part {row + 1}" if len(parts) > 1 else "whole" for row in range(len(parts))]
    )
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    axes.set_title("Nodes (area: time), and what crosses each cut", fontsize=10)
    legend = axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.01), ncols=len(colors), frameon=False)
    for handle in legend.legend_handles:
        handle.set_sizes([_LEGEND])


def _edge(axes: Any, start: Place, end: Place) -> None:
    """Draw what one node hands to another: an arc where it passes over others."""
    if end[0] - start[0] <= 1 or start[1] != end[1]:
        axes.plot((start[0], end[0]), (start[1], end[1]), color="0.65", linewidth=0.8, zorder=1)
        return
    arc = mpl.path.Path(
        [start, ((start[0] + end[0]) / 2, start[1] - 0.75), end],
        [mpl.path.Path.MOVETO, mpl.path.Path.CURVE3, mpl.path.Path.CURVE3],
    )
    axes.add_patch(mpl.patches.PathPatch(arc, fill=False, edgecolor="0.65", linewidth=0.8, zorder=1))


def _places(found: Partition, part: Part, row: int) -> Mapping[int, Place]:
    """Put a part's nodes side by side by how many nodes of the part they come after, branches above each other."""
    makers = {name: at for at in range(part.first, part.end) for name in found.flow.steps[at].writes}
    depths: dict[int, int] = {}
    for at in range(part.first, part.end):
        before = [depths[makers[name]] for name in found.flow.steps[at].reads if name in makers]
        depths[at] = max(before, default=-1) + 1
    together = Counter(depths.values())
    seen: Counter[int] = Counter()
    places = {}
    for at, depth in depths.items():
        count = together[depth]
        lane = (seen[depth] + 0.5) / count - 0.5 if count > 1 else 0.0
        seen[depth] += 1
        places[at] = (float(depth), row + 0.6 * lane)
    return places


def _colors(found: Partition) -> dict[str, Any]:
    took: Counter[str] = Counter()
    for step, time_ns in zip(found.flow.steps, found.nodes.times_ns, strict=True):
        took[step.op] += round(time_ns)
    kinds = [kind for kind, _ in took.most_common(_KINDS)]
    colors: dict[str, Any] = dict(zip(kinds, mpl.colormaps["tab10"](range(_KINDS)), strict=False))
    if len(took) > _KINDS:
        colors["others"] = "0.5"
    return colors


def _kind(found: Partition, at: int, colors: Mapping[str, Any]) -> str:
    op = found.flow.steps[at].op
    return op if op in colors else "others"


def _carried(found: Partition, tensors: tuple[str, ...]) -> str:
    seen = [found.nodes.tensors[name] for name in tensors]
    shapes = ", ".join("×".join(map(str, its.shape)) or "scalar" for its in seen)
    return f"{shapes} ({sum(its.nbytes for its in seen) / 1024:,.0f} KiB)"


def _times(axes: Any, parts: tuple[Part, ...], cost: Cost | None) -> None:
    times = [its / _MS for its in (cost.each_ns if cost is not None else [part.time_ns for part in parts])]
    longest = max(times)
    colors = ["tab:orange" if time == longest and len(times) > 1 else "tab:blue" for time in times]
    bars = axes.barh(range(len(times)), times, 0.6, color=colors)
    axes.bar_label(bars, [f" {time:.2f} ms" for time in times])
    axes.set_xlim(0, 1.35 * longest)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("ms")
    axes.set_title("Time (orange: the longest)", fontsize=10)
