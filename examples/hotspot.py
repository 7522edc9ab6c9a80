"""Computes how warm a chip becomes on the accelerators of this machine, and draws it.

python hotspot.py --size 64MiB
python hotspot.py --queues 2 --draw chip.png        needs matplotlib (pip install 'polymux[demo]')

The application is `polymux.apps.hotspot`: it submits its tasks to one queue or several, and never asks where they run.
"""

from __future__ import annotations

import argparse
import sys

from polymux.apps.application import Arrays
from polymux.apps.command import main, parser_of
from polymux.apps.hotspot import Hotspot


def show(arguments: argparse.Namespace, result: Arrays) -> None:
    temperature = result["temperature"]
    print(f"temperatures from {temperature.min():.1f} to {temperature.max():.1f} degrees Celsius")
    if arguments.draw:
        from matplotlib.figure import Figure  # only now: the computation needs no matplotlib

        figure = Figure(figsize=(6, 5))
        axes = figure.subplots()
        picture = axes.imshow(temperature, cmap="inferno")
        axes.set_title(f"{temperature.shape[0]} x {temperature.shape[1]} cells")
        figure.colorbar(picture, ax=axes, label="°C")
        figure.savefig(arguments.draw, dpi=150, bbox_inches="tight")
        print(f"wrote {arguments.draw}")


if __name__ == "__main__":
    parser = parser_of(Hotspot)
    parser.add_argument(
        "--draw", metavar="FILE", help="write a picture of the temperatures, such as chip.png"
    )
    sys.exit(main(Hotspot, parser=parser, show=show))
