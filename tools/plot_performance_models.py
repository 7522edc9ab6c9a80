"""Draws the picture of docs/performance-models.md from the tables that come with the package.

python tools/plot_performance_models.py docs/images/performance-models.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from polymux.perfmodel import tables
from polymux.perfmodel.analytical import AnalyticalDnn, merit_of_times

MODELS = {"mobilenet": "MobileNet", "alexnet": "AlexNet", "resnet50": "ResNet-50", "vgg19": "VGG-19"}
COLOURS = ("#2f6fab", "#d1803b", "#4c9a5b", "#8a5aa8")
UNITS = range(1, 61)
PAPER_KNEES = {20: 9, 40: 24, 60: 31}


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("picture", type=Path, help="the file to write, such as performance-models.png")
    arguments = parser.parse_args()
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_latencies(left)
    _draw_merit(right)
    for axes in (left, right):
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    figure.savefig(arguments.picture, dpi=130)


def _draw_latencies(axes: Axes) -> None:
    shares = tables.device("v100").shares
    for colour, (name, label) in zip(COLOURS, MODELS.items(), strict=True):
        measured, model, flat = (
            table("v100", name) for table in (tables.surface, tables.model, tables.flat_knee)
        )
        axes.plot(
            shares, [measured.latency_ns(p, 16) / 1e6 for p in shares], color=colour, marker=".", label=label
        )
        fine = range(10, 101)
        axes.plot(
            fine, [flat.latency_ns(p, 16) / 1e6 for p in fine], color=colour, linestyle=":", linewidth=1.2
        )
        axes.plot(
            [model.knee_units], [flat.latency_ns(model.knee_units, 16) / 1e6], "o", color=colour, markersize=6
        )
    axes.set_yscale("log")
    axes.set_yticks([5, 10, 20, 50, 100, 200], ["5", "10", "20", "50", "100", "200"])
    axes.minorticks_off()
    axes.set_xlabel("share of a V100 (%)")
    axes.set_ylabel("latency of a batch of 16 (ms)")
    axes.set_title("Measured (solid), the paper's assumption (dotted, knee)", loc="left", fontsize=10)
    axes.legend(fontsize=8, frameon=False)


def _draw_merit(axes: Axes) -> None:
    for colour, (first, paper) in zip(COLOURS, PAPER_KNEES.items(), strict=False):
        model = AnalyticalDnn(first, 50, 40, 10)
        merit = merit_of_times(model.times_ns(UNITS, 1))
        knee = model.knee(len(UNITS))
        axes.plot(UNITS, merit, color=colour, label=f"N₁ = {first}")
        axes.plot([knee], [merit[knee - 1]], "o", color=colour, markersize=6)
        axes.plot([paper], [merit[paper - 1]], "x", color=colour, markersize=8)
    axes.plot([], [], "o", color="#666666", label="knee of the equations")
    axes.plot([], [], "x", color="#666666", label="knee in the paper")
    axes.set_xlabel("compute units S")
    axes.set_ylabel("1 / (E² · S), in parts of its largest")
    axes.set_ylim(0, 1.05)
    axes.set_title("The analytical model (50 kernels)", loc="left", fontsize=10)
    axes.legend(fontsize=8, frameon=False)


if __name__ == "__main__":
    main()
