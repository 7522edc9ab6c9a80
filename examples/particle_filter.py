"""Follows a moving object through noisy images on the accelerators of this machine, and draws its path.

python particle_filter.py --size 64MiB
python particle_filter.py --queues 4 --draw path.png        needs matplotlib (pip install 'polymux[demo]')

The application is `polymux.apps.particle_filter`: it submits its tasks to one queue or several, and never asks where
they run.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

from polymux.apps.application import Arrays
from polymux.apps.command import main, parser_of
from polymux.apps.particle_filter import ParticleFilter


def show(arguments: argparse.Namespace, result: Arrays) -> None:
    application = ParticleFilter.of_size(arguments.size, arguments.seed)
    path, truth = result["path"], application.truth
    distance = np.linalg.norm(path - truth, axis=1)
    print(
        f"{application.particles} particles, {len(path)} images of {application.side} x {application.side} pixels"
    )
    print(
        f"the estimates are {distance.mean():.2f} pixels from the object on average, {distance.max():.2f} at most"
    )
    if arguments.draw:
        from matplotlib.figure import Figure  # only now: the computation needs no matplotlib

        figure = Figure(figsize=(6, 6))
        axes = figure.subplots()
        image = application.images[-1][0, 0]
        axes.imshow(image, cmap="gray", extent=(0, application.side, application.side, 0))
        axes.plot(*truth.T, color="tab:cyan", linewidth=6, label="the object")
        axes.plot(*path.T, color="tab:red", marker="o", markersize=3, linewidth=1, label="estimated")
        axes.set_title(f"The last of {len(path)} images")
        axes.legend()
        figure.savefig(arguments.draw, dpi=150, bbox_inches="tight")
        print(f"wrote {arguments.draw}")


if __name__ == "__main__":
    parser = parser_of(ParticleFilter)
    parser.add_argument("--draw", metavar="FILE", help="write a picture of the path, such as path.png")
    sys.exit(main(ParticleFilter, parser=parser, show=show))
