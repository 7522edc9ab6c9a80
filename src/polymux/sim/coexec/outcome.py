"""What came of a simulated co-execution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from polymux.perfmodel.coexec.adapt import Chunk, Plan


@dataclass(frozen=True, slots=True)
class Span:
    """A copy or a computation.

    Parameters
    ----------
    unit : str
    kind : {"in", "compute", "out"}
    chunk : Chunk
    start_ns, end_ns : int, ns
    stolen : bool
        Whether the chunk was another unit's in the plan.
    """

    unit: str
    kind: Literal["in", "compute", "out"]
    chunk: Chunk
    start_ns: int
    end_ns: int
    stolen: bool = False


@dataclass(frozen=True, slots=True)
class CoexecOutcome:
    """A simulated co-execution.

    Parameters
    ----------
    plan : Plan
    spans : tuple of Span
        By start.
    makespan_s : float, s
    energy_j : float, optional, J
        None: a unit has no model of its power.
    ideal_s : float, s
        What all devices together would need if nothing were copied and nothing lost.
    lost : tuple of str
        Units that failed.
    """

    plan: Plan
    spans: tuple[Span, ...]
    makespan_s: float
    energy_j: float | None
    ideal_s: float
    lost: tuple[str, ...] = ()

    @property
    def stolen(self) -> int:
        """Length that another unit computed than the plan had it."""
        return sum(span.chunk.count for span in self.spans if span.stolen and span.kind == "compute")
