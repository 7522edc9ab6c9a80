"""Remembers that nothing could be started, so that not every arrival has to be looked at."""

from __future__ import annotations

from polymux.core.serving.model import ModelName, Request
from polymux.core.serving.view import ServingView

NEVER_NS = 1 << 62


class Settled:
    """For policies whose choice does not change when more requests come for models that had some before."""

    def __init__(self) -> None:
        self._models: set[ModelName] = set()
        self._until_ns = 0

    def is_upset(self, request: Request, now: int) -> bool:
        """Whether an arrival may make a difference."""
        return now >= self._until_ns or request.model not in self._models

    def note(self, view: ServingView, until_ns: int = NEVER_NS) -> None:
        """Nothing can start now, for none of the models that have requests; it is so until a certain time."""
        self._models = set(view.waiting)
        self._until_ns = until_ns

    def forget(self) -> None:
        """Something starts: look at everything again."""
        self._until_ns = 0
