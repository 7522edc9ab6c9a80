"""What the pool of input stages does, as Prometheus metrics."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from polymux.inputs import StagePool

__all__ = ["StageMetrics"]

_PREFIX = "polymux_serving_stage"


class StageMetrics(Collector):
    """Counts what input stages do.

    Parameters
    ----------
    pool : StagePool
    """

    def __init__(self, pool: StagePool) -> None:
        self._pool = pool

    def collect(self) -> Iterator[Metric]:
        """Yield the families; from any thread."""
        runs = CounterMetricFamily(f"{_PREFIX}_runs", "Runs of input stages.", labels=["stage"])
        shared = CounterMetricFamily(
            f"{_PREFIX}_shared", "Requests that got the result of another one's run.", labels=["stage"]
        )
        failed = CounterMetricFamily(
            f"{_PREFIX}_failures", "Runs of input stages that failed.", labels=["stage"]
        )
        seconds = CounterMetricFamily(f"{_PREFIX}_seconds", "Time that input stages ran.", labels=["stage"])
        for name, counts in self._pool.counts().items():
            runs.add_metric([name], counts.runs)
            shared.add_metric([name], counts.shared)
            failed.add_metric([name], counts.failed)
            seconds.add_metric([name], counts.run_ns * 1e-9)
        yield from (runs, shared, failed, seconds)
        yield GaugeMetricFamily(
            f"{_PREFIX}_waiting", "Requests that wait for an input stage.", value=self._pool.waiting
        )
