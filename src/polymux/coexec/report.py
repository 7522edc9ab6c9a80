"""What a call of a session did, for whoever wants to look."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from polymux.coexec.knowledge import Planned
from polymux.coexec.picture import draw
from polymux.core.errors import PolymuxError
from polymux.sched.coexec.dispatcher import ChunkRun


@dataclass(frozen=True, slots=True)
class Report:
    """What a call did.

    Parameters
    ----------
    operation : str
    planned : Planned
        The plan, with the predicted time.
    plan_s, run_s : float
        Seconds spent on planning, and on computing.
    runs : tuple of ChunkRun
        The pieces with their units and times, for a picture.
    failures : mapping of str to PolymuxError
        Units that failed in the middle; their pieces were computed by others.
    trouble : str, optional
        Why the profile store could not be read or written; what is learned then lasts for the session.
    """

    operation: str
    planned: Planned
    plan_s: float
    run_s: float
    runs: tuple[ChunkRun, ...]
    failures: Mapping[str, PolymuxError]
    trouble: str | None = None

    @property
    def predicted_s(self) -> float:
        """Seconds that the run was predicted to take."""
        return self.planned.plan.predicted_s

    def draw(self, path: str | Path) -> None:
        """Draw the pieces over time; see `polymux.coexec.picture.draw`."""
        draw(self, path)
