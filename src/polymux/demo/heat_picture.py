"""Draws the temperatures of the chip."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from polymux.demo.picture import Theme, settings

__all__ = ["draw_heat"]


def draw_heat(temperatures: Path, theme: Theme, path: Path) -> None:
    """Draw temperatures in degrees Celsius, a ``.npy`` file, as a picture with a scale."""
    with mpl.rc_context(settings(theme)):
        figure = Figure(figsize=(5.2, 4.2), facecolor=theme.paper)
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        picture = axes.imshow(np.load(temperatures), cmap="inferno", extent=(0, 16, 16, 0))
        axes.set_title("The chip at the end", loc="left", fontsize=11)
        axes.set_xlabel("mm")
        axes.set_ylabel("mm")
        figure.colorbar(picture, ax=axes, label="°C")
        figure.savefig(path, facecolor=theme.paper, bbox_inches="tight")
