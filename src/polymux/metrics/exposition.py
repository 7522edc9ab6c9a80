"""The text of the metrics, in the format that whoever asks prefers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from polymux.metrics.collector import Status, StatusCollector


class Exposition(NamedTuple):
    """The metrics as they are sent."""

    content_type: str
    text: bytes


class Metrics:
    """The metrics of one server.

    Parameters
    ----------
    status : callable
        Returns what ``polymux status --json`` prints, or raises.
    process : bool
        Also tell of the calling process: memory, processor time, descriptors.
    collectors : sequence of Collector
        What else to tell.
    """

    def __init__(
        self,
        status: Callable[[], Status],
        *,
        process: bool = False,
        collectors: Sequence[Collector] = (),
    ) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(StatusCollector(status))
        if process:
            ProcessCollector(registry=self._registry)
        for collector in collectors:
            self._registry.register(collector)

    def expose(self, accept: str | None) -> Exposition:
        """Ask for the status and write it down.

        Parameters
        ----------
        accept : str or None
            The header of that name: Prometheus' text format or OpenMetrics.
        """
        encode, content_type = choose_encoder(accept or "")
        return Exposition(content_type, encode(self._registry))
