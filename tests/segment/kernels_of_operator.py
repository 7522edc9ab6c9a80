"""Kernels that the tests' servers offer: slow, failing and crashing ones."""

from __future__ import annotations

import time
from typing import Any

from polymux.kernel import kernel


@kernel("double", inputs="x", outputs="y")
def double(x: Any, y: Any) -> None:
    y[...] = 2 * x


@kernel("sleep", inputs="x", outputs="y", scalars={"seconds": "f8"})
def sleep(x: Any, y: Any, seconds: float) -> None:
    time.sleep(seconds)
    y[...] = x


@kernel("raise", inputs="x", outputs="y")
def raise_(x: Any, y: Any) -> None:
    raise ValueError("out of luck")


@kernel("exit", inputs="x", outputs="y")
def exit_(x: Any, y: Any) -> None:
    raise SystemExit(3)


@kernel("garbage_shape", inputs="x", outputs="y")
def garbage_shape(x: Any, y: Any) -> list[tuple[int, ...]]:
    return [(-3, 10**30)]


@kernel("too_large", inputs="x", outputs="y")
def too_large(x: Any, y: Any) -> list[tuple[int, ...]]:
    return [(x.size + 1,)]


@kernel("half", inputs="x", outputs="y")
def half(x: Any, y: Any) -> list[tuple[int, ...]]:
    """Report a result of half the buffer's size."""
    y[: x.size // 2] = x[: x.size // 2]
    return [(x.size // 2,)]


@kernel("wrong_count", inputs="x", outputs="y")
def wrong_count(x: Any, y: Any) -> list[tuple[int, ...]]:
    return [(1,), (1,)]


@kernel("lost_result", inputs="x", outputs="y")
def lost_result(x: Any, y: Any) -> Any:
    return x * 2


@kernel("add_ones", inputs="x", outputs="y")
def add_ones(x: Any, y: Any) -> None:
    y[...] = x + 1
