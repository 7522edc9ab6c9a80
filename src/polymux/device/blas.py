"""BLAS libraries: one thread each, because a kernel's parallelism is that of its share."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from threadpoolctl import threadpool_limits


def hold_blas_threads() -> Callable[[], None]:
    """Let every BLAS library of this process compute with the calling thread alone.

    Without this, each of several accelerator threads would use threads for all cores of the machine, outside
    the cores of its share.

    Returns
    -------
    callable
        Restores the numbers of threads from before.

    Notes
    -----
    Holds for the whole process, the application included when the runtime lives inside it, and for libraries that
    are loaded by now; NumPy's is.
    """
    np.dot(np.ones(1), np.ones(1))  # so that NumPy's own library is loaded
    limits = threadpool_limits(limits=1, user_api="blas")
    restore: Callable[[], None] = limits.restore_original_limits
    return restore
