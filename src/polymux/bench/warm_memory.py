"""Memory that was touched before: what a virtual machine gets from its host at the first touch only, for once."""

from __future__ import annotations

import os
import subprocess
import sys

_TOUCH = """
import mmap, sys
pages = mmap.mmap(-1, int(sys.argv[1]), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for offset in range(0, len(pages), mmap.PAGESIZE):
    pages[offset] = 1
"""
_MOST = 0.5
"""Of the memory that is available."""


def warm_memory(nbytes: int) -> None:
    """Have so many bytes of free memory backed by the host, as far as half of what is available allows.

    Parameters
    ----------
    nbytes : int
        As many as all processes of a measurement use together.

    Notes
    -----
    A process of its own touches them and ends; the system then hands the same pages out again. Without that, the set-up
    that needs the most memory pays for its first touch (up to 0.2 s for 89 MB) and the others do not.
    """
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    nbytes = min(nbytes, int(available * _MOST))
    if nbytes > 0:
        subprocess.run([sys.executable, "-c", _TOUCH, str(nbytes)], check=True)
