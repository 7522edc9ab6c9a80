"""Kernels of an operator who does not trust them: they are given with ``--isolated-kernels``."""

from __future__ import annotations

import ctypes
import os
from typing import Any

from polymux.kernel import kernel


@kernel("operator_segfault", inputs="x", outputs="y")
def operator_segfault(x: Any, y: Any) -> None:
    ctypes.string_at(0)


@kernel("operator_pid", inputs="x", outputs="y")
def operator_pid(x: Any, y: Any) -> None:
    y[...] = os.getpid()
