"""Kernels in Python that the benchmarks give to their server."""

from __future__ import annotations

from typing import Any

from polymux.kernel import kernel


@kernel("bench_empty_python", inputs=("x",), outputs=("y",), scalars={"scale": "f8", "count": "i8"})
def bench_empty_python(x: Any, y: Any, *, scale: float, count: int) -> None:
    """Do nothing: what a task of a Python kernel costs."""
