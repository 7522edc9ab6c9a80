"""What to run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["DemoOptions"]


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What to run.

    Attributes
    ----------
    seconds : float
        Length of the load.
    folder : Path
        Where trace, picture and page go; made if it is not there.
    devices : tuple of str
        As ``polymux up --device``; all devices of the machine when empty.
    """

    seconds: float = 25.0
    folder: Path = Path("demo-output")
    devices: tuple[str, ...] = field(default=())
