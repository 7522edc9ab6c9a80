"""Solves a system of linear equations on the accelerators of this machine.

python gaussian.py --size 64MiB
python gaussian.py --queues 2 --device cpu:0 --device opencl:0

The application is `polymux.apps.gaussian`: it submits its tasks to one queue or several, and never asks where they run.
"""

from __future__ import annotations

import sys

from polymux.apps.command import main
from polymux.apps.gaussian import Gaussian

if __name__ == "__main__":
    sys.exit(main(Gaussian))
