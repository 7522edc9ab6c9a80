"""Remembers that nothing could be started, so that not every arrival has to be looked at."""

from __future__ import annotations

from polymux.core.serving.event import RequestsArrived, ServingEvent
from polymux.core.serving.model import ModelName
from polymux.core.serving.view import ServingView

NEVER_NS = 1 << 62


class Settled:
    """For policies whose choice does not change when more requests come for models that had some before."""

    def __init__(self) -> None:
        self._models: set[ModelName] = set()
        self._until_ns = 0

    def covers(self, event: ServingEvent, now: int) -> bool:
        """Whether an event brings only what makes no difference."""
        return (
            isinstance(event, RequestsArrived)
            and now < self._until_ns
            and all(request.model in self._models for request in event.requests)
        )

    def note(self, view: ServingView, until_ns: int = NEVER_NS) -> None:
        """Nothing can start now, for none of the models that have requests; it is so until a certain time."""
        self._models = {name for name, state in view.models.items() if state.waiting}
        self._until_ns = until_ns

    def forget(self) -> None:
        """Something starts: look at everything again."""
        self._until_ns = 0
