"""What a run of the demo came to."""

from __future__ import annotations

from dataclasses import dataclass

from polymux.demo.message import Finding
from polymux.demo.operator import Migration
from polymux.demo.tally import Tally

__all__ = ["Outcome"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run came to.

    Attributes
    ----------
    load_s : float
        Length of the load, in s.
    tally : Tally
        Requests by model.
    steps : int
        Time steps of the numerical application.
    longest_batch_ms : float
        Longest time that a batch of its steps took, migrations included.
    migrations : tuple of Migration
    copied_nbytes : int
        Bytes copied into and out of devices' memories.
    devices : tuple of str
        Devices that can run the numerical application.
    findings : tuple of Finding
        Results held against references and against what people say.
    """

    load_s: float
    tally: Tally
    steps: int
    longest_batch_ms: float
    migrations: tuple[Migration, ...]
    copied_nbytes: int
    devices: tuple[str, ...]
    findings: tuple[Finding, ...]

    @property
    def moves(self) -> int:
        """Migrations that were done."""
        return sum(not migration.problem for migration in self.migrations)

    @property
    def sent(self) -> int:
        """Requests sent."""
        return sum(model.sent for model in self.tally.models.values())

    @property
    def answered(self) -> int:
        """Requests answered."""
        return sum(model.answered for model in self.tally.models.values())

    @property
    def right(self) -> int:
        """Requests answered as the reference says."""
        return self.answered - sum(model.wrong for model in self.tally.models.values())

    @property
    def problems(self) -> list[str]:
        """Say everything that went wrong; empty when nothing did."""
        found = []
        for name, model in self.tally.models.items():
            if not model.sent:
                found.append(f"no request was sent to {name}")
            elif not model.good:
                found.append(
                    f"{name}: {model.lost} of {model.sent} requests lost, {model.wrong} answers wrong"
                )
        found += [f"first of them: {problem}" for problem in self.tally.problems[:1]]
        found += [f"{finding.what}: {finding.result}" for finding in self.findings if finding.good is False]
        found += [
            f"migration from {migration.source} to {migration.target} refused: {migration.problem}"
            for migration in self.migrations
            if migration.problem
        ]
        if len(self.devices) > 1 and not self.moves:
            found.append("the numerical application was never migrated")
        return found

    @property
    def verdict(self) -> str:
        """Say in a sentence what came out."""
        if self.problems:
            return f"Something went wrong: {self.problems[0]}"
        return (
            f"Nothing lost: {self.sent:,} requests sent = {self.answered:,} answered = {self.right:,} right;"
            f" {self.steps:,} steps computed while the application was moved {self.moves} times."
        )
