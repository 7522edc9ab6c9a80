"""The dispatch table, the built-in kernels, and how further kernels get in: decorator, files, entry points."""

from __future__ import annotations

from polymux.kernel.decorator import kernel
from polymux.kernel.definition import Definition
from polymux.kernel.table import DispatchTable
from polymux.kernel.team import Team

__all__ = ["Definition", "DispatchTable", "Team", "kernel"]
