"""Counts of requests and answers, by model."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from polymux.demo.message import Answer, Answers

__all__ = ["ModelTally", "Tally"]


@dataclass(slots=True)
class ModelTally:
    """What became of the requests of one model.

    Attributes
    ----------
    sent, answered, wrong, failed : int
        Requests sent; with an answer; of these, with one that disagrees with the reference; with an error instead.
    latencies_ns : list of int
        From sending a request to having read its answer.
    """

    sent: int = 0
    answered: int = 0
    wrong: int = 0
    failed: int = 0
    latencies_ns: list[int] = field(default_factory=list)

    @property
    def lost(self) -> int:
        """Requests that never got an answer."""
        return self.sent - self.answered

    @property
    def good(self) -> bool:
        """Whether every request was answered, and rightly."""
        return self.sent > 0 and self.lost == 0 and self.wrong == 0

    def percentile_ms(self, percent: float) -> float:
        """Return a percentile of the latencies in ms; NaN without any."""
        return float(np.percentile(self.latencies_ns, percent)) / 1e6 if self.latencies_ns else float("nan")


class Tally:
    """All models' counts, all answers, and the first few problems.

    Parameters
    ----------
    models : iterable of str
    """

    def __init__(self, models: list[str]) -> None:
        self.models = {name: ModelTally() for name in models}
        self.answers: list[Answer] = []
        self.notes: dict[str, str] = {}
        self.problems: list[str] = []

    def take(self, message: Answers) -> None:
        """Add what an application told."""
        for model in message.sent:
            self.models[model].sent += 1
        for answer in message.answers:
            self._add(answer)
        self.notes[message.application] = message.note

    def throughput(self, model: str, elapsed_s: float) -> float:
        """Return answers a second."""
        return self.models[model].answered / elapsed_s if elapsed_s > 0 else 0.0

    def _add(self, answer: Answer) -> None:
        of_model = self.models[answer.model]
        self.answers.append(answer)
        if answer.problem:
            self.problems.append(answer.problem)
        if answer.failed:
            of_model.failed += 1
            return
        of_model.answered += 1
        of_model.wrong += bool(answer.problem)
        of_model.latencies_ns.append(answer.end_ns - answer.start_ns)
