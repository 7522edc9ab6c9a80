"""Draws a simulated co-execution: who copied and computed what when, and time against energy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from polymux.core.errors import InvalidRequest
from polymux.perfmodel.coexec.adapt import Plan
from polymux.sim.coexec.outcome import CoexecOutcome

_COLOURS = {"in": "#7aa6d1", "compute": "#3a6f3e", "out": "#c98f4e"}
_NAMES = {"in": "copy in", "compute": "compute", "out": "copy back"}
_TAKEN_OVER = "#93b97c"
_PLACES = {"in": (0.66, 0.22), "compute": (0.22, 0.42), "out": (0.0, 0.2)}
"""Lower edge and height within the lane of a unit."""


def draw(path: Path, title: str, outcome: CoexecOutcome, frontier: Sequence[Plan]) -> None:
    """Draw a co-execution, and below it time against energy where there is a frontier.

    Parameters
    ----------
    path : Path
        Of the picture; its ending says which format.
    title : str
    outcome : CoexecOutcome
    frontier : sequence of Plan

    Raises
    ------
    InvalidRequest
        If matplotlib is missing or the format is unknown.
    OSError
        If the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure  # slow to import, and part of an extra
    except ModuleNotFoundError as error:
        raise InvalidRequest(
            f"a picture needs the package {error.name}: pip install 'polymux[plan]'"
        ) from error
    units = list(dict.fromkeys([*outcome.plan.units, *(span.unit for span in outcome.spans)]))
    lanes = 0.8 * len(units) + 1.6
    heights = [lanes, 3.4] if frontier else [lanes]
    figure = Figure(figsize=(11, sum(heights)), layout="constrained")
    axes = figure.subplots(len(heights), 1, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
    _draw_spans(axes[0], units, outcome)
    axes[0].set_title(title, loc="left")
    if frontier:
        _draw_frontier(axes[1], frontier)
    try:
        figure.savefig(path, dpi=120)
    except ValueError as error:
        raise InvalidRequest(f"{path}: {error}; name a file that ends with .png or .svg") from error


def _draw_spans(axes: Any, units: Sequence[str], outcome: CoexecOutcome) -> None:
    for span in outcome.spans:
        lane = len(units) - 1 - units.index(span.unit)
        low, height = _PLACES[span.kind]
        colour = _TAKEN_OVER if span.stolen and span.kind == "compute" else _COLOURS[span.kind]
        start, width = span.start_ns / 1e6, (span.end_ns - span.start_ns) / 1e6
        axes.broken_barh(
            [(start, width)], (lane + low, height), color=colour, edgecolor="white", linewidth=0.6
        )
        if span.kind == "compute" and width > 0.05 * outcome.makespan_s * 1e3:
            label = f"{span.chunk.count:,}"
            axes.text(
                start + width / 2,
                lane + low + height / 2,
                label,
                ha="center",
                va="center",
                fontsize=7,
                color="white",
            )
    for seconds, name, style in (
        (outcome.ideal_s, "possible", ":"),
        (outcome.plan.predicted_s, "predicted", "--"),
        (outcome.makespan_s, "end", "-"),
    ):
        axes.axvline(seconds * 1e3, color="#555555", linestyle=style, linewidth=1, label=name)
    for kind, colour in _COLOURS.items():
        if any(span.kind == kind for span in outcome.spans):
            axes.broken_barh([], (0, 0), color=colour, label=_NAMES[kind])
    if outcome.stolen:
        axes.broken_barh([], (0, 0), color=_TAKEN_OVER, label="taken over")
    axes.set_yticks([len(units) - 1 - place + 0.45 for place in range(len(units))], units)
    axes.set_ylim(-0.1, len(units))
    longest = max(outcome.makespan_s, outcome.plan.predicted_s, min(outcome.ideal_s, outcome.makespan_s))
    axes.set_xlim(0, longest * 1.03e3)
    axes.set_xlabel("ms")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=7, frameon=False, fontsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _draw_frontier(axes: Any, frontier: Sequence[Plan]) -> None:
    times = [plan.predicted_s * 1e3 for plan in frontier]
    energies = [plan.energy_j or 0.0 for plan in frontier]
    axes.plot(times, energies, "o-", color=_COLOURS["compute"], markersize=5)
    named: set[tuple[str, ...]] = set()
    for plan, time, energy in zip(frontier, times, energies, strict=True):
        who = tuple(sorted(plan.units))
        if who not in named:
            named.add(who)
            axes.annotate(
                " + ".join(who), (time, energy), xytext=(8, 6), textcoords="offset points", fontsize=8
            )
    axes.set_xlabel("time, ms")
    axes.set_ylabel("energy of all devices, J")
    axes.set_title("Time against energy", loc="left")
    axes.margins(x=0.25, y=0.2)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
