"""What the scheduler counts, as Prometheus metrics, and the gaps that changes of shares leave in the answers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from polymux.core.ids import DeviceId
from polymux.core.serving.decision import Dispatch
from polymux.core.serving.model import ModelName, Request
from polymux.core.serving.view import ServingView

__all__ = ["Statistics"]

_log = logging.getLogger(__name__)

_NS = 1e-9
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_ITEMS = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(slots=True)
class _Change:
    """A share that is being made ready, and the longest time without an answer meanwhile."""

    device: DeviceId
    units: int
    last_ns: int
    longest_ns: int = 0


class Statistics(Collector):
    """Counts requests and batches of each model.

    Parameters
    ----------
    clock : callable
        Monotonic time in ns.

    Notes
    -----
    A gap is the time between two answers of a model, as far as requests for it waited or ran, from the moment at which
    a share is asked for until the first answer of a batch that ran on it.
    """

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock = clock
        self.view: Callable[[], ServingView] = ServingView
        """Where the gauges look; set by whoever has an engine."""
        self._requests = _counter("requests", "Requests by what became of them.", "outcome")
        self._latency = _histogram("request_seconds", "From arrival to answer.", _SECONDS)
        self._items = _histogram("batch_items", "Items of each batch.", _ITEMS)
        self._batch_time = _histogram("batch_seconds", "How long batches took.", _SECONDS)
        self._unit_time = _counter("unit_seconds", "Time that batches ran, times the compute units of each.")
        self._changes = _counter(
            "share_changes", "Shares that a model was made able to run on while it was served."
        )
        self._gap = Gauge(
            "polymux_serving_longest_gap_seconds",
            "Longest time without an answer during a change of shares, while requests were there.",
            ("model",),
            registry=None,
        )
        self._own: tuple[MetricWrapperBase, ...] = (
            self._requests, self._latency, self._items, self._batch_time, self._unit_time, self._changes, self._gap,
        )  # fmt: skip
        self._changing: dict[ModelName, _Change] = {}
        self._longest_ns: dict[ModelName, int] = {}

    def collect(self) -> Iterator[Metric]:
        """Yield the families; from any thread."""
        waiting = Gauge(
            "polymux_serving_waiting", "Requests that wait for a batch.", ("model",), registry=None
        )
        drift = Gauge(
            "polymux_serving_drift", "Measured over expected time of batches.", ("model",), registry=None
        )
        for name, state in list(self.view().models.items()):
            waiting.labels(name).set(len(state.waiting))
            drift.labels(name).set(state.drift)
        for metric in (*self._own, waiting, drift):
            yield from metric.collect()

    def refused(self, model: ModelName) -> None:
        """Note that the policy refused a request."""
        self._requests.labels(model, "refused").inc()

    def expired(self, model: ModelName) -> None:
        """Note that a request's own timeout passed while it waited."""
        self._requests.labels(model, "expired").inc()

    def answered(self, request: Request, now: int, on_time: bool, failed: bool) -> None:
        """Note the end of a request that was in a batch."""
        outcome = "failed" if failed else "on_time" if on_time else "late"
        self._requests.labels(request.model, outcome).inc()
        if not failed:
            self._latency.labels(request.model).observe((now - request.arrival_ns) * _NS)

    def batch(self, dispatch: Dispatch, start_ns: int, now: int) -> None:
        """Note the end of a batch."""
        model = dispatch.model
        took_s = max(0, now - start_ns) * _NS
        self._items.labels(model).observe(sum(request.items for request in dispatch.requests))
        self._batch_time.labels(model).observe(took_s)
        self._unit_time.labels(model).inc(took_s * dispatch.units)
        change = self._changing.get(model)
        if change is None:
            return
        arrived_ns = min(request.arrival_ns for request in dispatch.requests)
        change.longest_ns = max(change.longest_ns, now - max(change.last_ns, arrived_ns))
        change.last_ns = now
        if (dispatch.device, dispatch.units) == (change.device, change.units):
            self._change_ends(model, change)

    def change_begins(self, model: ModelName, device: DeviceId, units: int) -> None:
        """Note that a model is being made able to run on a share."""
        self._changes.labels(model).inc()
        self._changing[model] = _Change(device, units, self._clock())

    def retired(self, model: ModelName, device: DeviceId, units: int) -> None:
        """Note that a model lets go of a share."""
        change = self._changing.get(model)
        if change is not None and (change.device, change.units) == (device, units):
            self._change_ends(model, change)

    def _change_ends(self, model: ModelName, change: _Change) -> None:
        del self._changing[model]
        longest_ns = self._longest_ns[model] = max(self._longest_ns.get(model, 0), change.longest_ns)
        self._gap.labels(model).set(longest_ns * _NS)
        _log.info(
            "model %s now also runs on %d units of %s; longest gap between answers meanwhile: %.1f ms",
            model, change.units, change.device, change.longest_ns / 1e6,
        )  # fmt: skip


def _counter(name: str, text: str, *labels: str) -> Counter:
    return Counter(f"polymux_serving_{name}", text, ("model", *labels), registry=None)


def _histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
    return Histogram(f"polymux_serving_{name}", text, ("model",), registry=None, buckets=buckets)
