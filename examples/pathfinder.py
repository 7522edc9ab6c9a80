"""Finds the cheapest ways through a grid of random costs on the accelerators of this machine.

python pathfinder.py --size 64MiB
python pathfinder.py --queues 4

The application is `polymux.apps.pathfinder`: it submits tasks to one queue or several and never asks where they run.
"""

from __future__ import annotations

import argparse
import sys

from polymux.apps.application import Arrays
from polymux.apps.command import main
from polymux.apps.pathfinder import Pathfinder


def show(_: argparse.Namespace, result: Arrays) -> None:
    cost = result["cost"]
    print(f"the cheapest way ends in column {int(cost.argmin())} and costs {int(cost.min())}")


if __name__ == "__main__":
    sys.exit(main(Pathfinder, show=show))
