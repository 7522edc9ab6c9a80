"""A kernels file in Python: ``polymux up --kernels kernels.py --kernels kernels.toml``.

The functions run on cpu devices, directly on the memory that the application has written. `mandelbrot` has a second
version for OpenCL devices in kernels.toml; a task runs where the server has put its queue.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from polymux.kernel import Team, kernel

Numbers = NDArray[np.float64]


@kernel(
    "mandelbrot",
    outputs="iterations",
    scalars={"left": "f8", "top": "f8", "step": "f8", "limit": "i4"},
    dtypes="i4",
    parallel=True,
    idempotent=True,
)
def mandelbrot(
    iterations: NDArray[np.int32], *, left: float, top: float, step: float, limit: int = 100, team: Team
) -> None:
    """How many steps of z = z^2 + c stay within |z| <= 2, at most `limit`, for every pixel of an image."""
    if iterations.ndim != 2:
        raise ValueError(f"iterations has shape {iterations.shape}, expected 2 dimensions (rows, columns)")
    rows, columns = iterations.shape

    def some_rows(begin: int, end: int) -> None:  # runs once on each core of the share
        re = np.broadcast_to(left + np.arange(columns) * step, (end - begin, columns))
        im = (top + np.arange(begin, end) * step)[:, None]
        x, y = np.zeros(re.shape), np.zeros(re.shape)
        count = iterations[begin:end]
        count[...] = 0
        inside = np.ones(re.shape, bool)
        with np.errstate(over="ignore", invalid="ignore"):
            for _ in range(limit):
                xx, yy = x * x, y * y
                inside &= xx + yy <= 4.0
                count += inside
                y = (x + x) * y + im
                x = xx - yy + re

    team.parallel_for(rows, some_rows)


@kernel("top_k", inputs="x", outputs=("values", "indices"), scalars={"k": "i4"}, idempotent=True)
def top_k(x: Numbers, values: Numbers, indices: NDArray[np.int64], *, k: int) -> list[tuple[int, ...]]:
    """The k largest elements of a vector, largest first. The buffers may have room for more: see the return value."""
    if x.ndim != 1 or not 0 <= k <= len(x):
        raise ValueError(f"k is {k} and x has shape {x.shape}, expected a vector of at least k elements")
    if min(values.size, indices.size) < k:
        raise ValueError(
            f"values has room for {values.size} and indices for {indices.size}, expected {k} or more"
        )
    order = np.argsort(x)[::-1][:k]
    values.reshape(-1)[:k] = x[order]
    indices.reshape(-1)[:k] = order
    return [(k,), (k,)]
