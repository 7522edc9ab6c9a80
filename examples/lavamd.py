"""Computes the forces between particles in neighbouring boxes on the accelerators of this machine.

python lavamd.py --size 64MiB
python lavamd.py --queues 2 --device cpu:0 --device opencl:0

The application is `polymux.apps.lavamd`: it submits its tasks to one queue or several, and never asks where they run.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

from polymux.apps.application import Arrays
from polymux.apps.command import main
from polymux.apps.lavamd import LavaMD


def show(_: argparse.Namespace, result: Arrays) -> None:
    forces = result["forces"].reshape(-1, 4)
    strength = np.linalg.norm(forces[:, 1:], axis=1)
    print(
        f"{len(forces)} particles; potential {forces[:, 0].mean():.2f} and force {strength.mean():.2f} on average"
    )
    print(f"the strongest force, {strength.max():.2f}, is on particle {int(strength.argmax())}")


if __name__ == "__main__":
    sys.exit(main(LavaMD, show=show))
