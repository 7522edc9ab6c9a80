"""What is assumed of a model before anything has been measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GuessedSurface:
    """A latency that is a part of the SLO whatever the share, and grows with the batch; the pace corrects it.

    Parameters
    ----------
    slo_ns : int
    max_batch : int
    """

    slo_ns: int
    max_batch: int

    def latency_ns(self, units: int, batch: int) -> int:  # noqa: ARG002
        """Time of one batch, in ns: an eighth of the SLO for one item, and half of that for each further one."""
        return max(1, self.slo_ns * (1 + batch) // 16)
