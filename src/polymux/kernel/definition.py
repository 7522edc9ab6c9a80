"""A kernel as its author gives it: what it takes and how each device API computes it."""

from __future__ import annotations

from dataclasses import dataclass

from polymux.core.implementation import Implementation
from polymux.core.kernel_spec import KernelSpec


@dataclass(frozen=True, slots=True)
class Definition:
    """A kernel's spec and its implementations, one per device API.

    Parameters
    ----------
    spec : KernelSpec
    implementations : tuple of Implementation
    """

    spec: KernelSpec
    implementations: tuple[Implementation, ...]
