"""One measured point of a latency surface."""

from __future__ import annotations

from dataclasses import dataclass

from polymux.core.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Measurement:
    """How long batches of one size took on one share of a device.

    Parameters
    ----------
    units : int
        Compute units; percent where shares are a percentage of the device.
    batch : int
    latency_ns : int, ns
        Median.
    p99_ns : int, ns
        99th percentile; 0: not known.
    count : int
        How many batches were measured; 0: not known.

    Raises
    ------
    InvalidRequest
        If a number is below 1, or `p99_ns` or `count` below 0.
    """

    units: int
    batch: int
    latency_ns: int
    p99_ns: int = 0
    count: int = 0

    def __post_init__(self) -> None:
        if min(self.units, self.batch, self.latency_ns) < 1 or min(self.p99_ns, self.count) < 0:
            raise InvalidRequest(
                f"measurement of a batch of {self.batch} on {self.units} units: {self.latency_ns} ns, 99th percentile"
                f" {self.p99_ns} ns, {self.count} times; give positive numbers"
            )
