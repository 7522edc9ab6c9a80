"""The experiment of `polymux bench elastic` in the simulator, with the speeds of the paper's devices.

Arax reports for two GPUs: an array of 1 GB is copied in 180 ms; a migration waits for about 600 kernels in flight,
0.33 s with 134 MB of data and 9 s with 2 GB, which is 80 % of its cost; the application of high priority takes 7 %
longer. So a kernel takes 0.55 ms and 15 ms, and the run that 7 % belong to about 10,700 kernels.
"""

from __future__ import annotations

from typing import Any

from polymux.bench.report import Progress, Row
from polymux.core.ids import DeviceId
from polymux.sim.model import ModelApplication, ModelDevice, ModelQueue
from polymux.sim.simulation import simulate

BANDWIDTH_BYTES_PER_S = 1e9 / 0.180
KERNELS = 10_700
DATA = ((134_000_000, 550_000), (520_000_000, 2_900_000), (2_000_000_000, 15_000_000))
"""Bytes of data and ns of a kernel; the middle one lies between the paper's on a log scale."""
LAUNCH_AHEAD = (600, 8)
"""Kernels in flight: the paper's, and what Polymux allows."""
HIGH_TARGET = 1.05
NOTES = (
    "simulated: two GPUs with the copy and kernel times of the paper, 600 kernels in flight as there, or 8",
)


def run(progress: Progress) -> list[dict[str, Any]]:
    """Play the experiment for every size and number of kernels in flight."""
    results = []
    for ahead in LAUNCH_AHEAD:
        for nbytes, kernel_ns in DATA:
            progress(f"simulated: {nbytes / 1e6:.0f} MB, {ahead} kernels in flight")
            results.append(_result(nbytes, kernel_ns, ahead))
    return results


def rows(results: list[dict[str, Any]]) -> tuple[Row, ...]:
    """Make the table's rows."""
    made = []
    for result in results:
        ahead = result["launch_ahead"]
        size = f"{result['nbytes'] / 1e6:.0f} MB, {ahead}"
        target = ahead == LAUNCH_AHEAD[-1]
        for name, limit in (("high", HIGH_TARGET), ("low", 1.0)):
            value, baseline = result[f"{name}_s"], result["high_alone_s" if name == "high" else "low_bound_s"]
            made.append(
                Row(
                    f"sim {name}, {size}",
                    value,
                    "s",
                    baseline,
                    "alone" if name == "high" else "bound",
                    f"<= {limit:g} x" if target else "",
                    value / baseline <= limit if target else None,
                )
            )
    return tuple(made)


def _result(nbytes: int, kernel_ns: int, ahead: int) -> dict[str, Any]:
    state = ModelQueue(KERNELS, kernel_ns, written_nbytes=nbytes // 3, read_nbytes=nbytes - nbytes // 3)
    arrives_ns = KERNELS * kernel_ns // 4
    low = ModelApplication("low", (state, state))
    high = ModelApplication("high", (state,), arrives_ns=arrives_ns, priority=10)
    high_alone = _run_s([high], 2, ahead)["high"]
    low_alone = _run_s([low], 1, ahead)["low"]
    both = _run_s([low, high], 2, ahead)
    return {
        "nbytes": nbytes,
        "high_ratio": both["high"] / high_alone,
        "low_ratio": both["low"] / (low_alone + both["high"]),
        "high_s": both["high"],
        "high_alone_s": high_alone,
        "low_s": both["low"],
        "low_bound_s": low_alone + both["high"],
        "launch_ahead": ahead,
        "simulated": True,
    }


def _run_s(applications: list[ModelApplication], devices: int, ahead: int) -> dict[str, float]:
    made = [
        ModelDevice(DeviceId(f"gpu:{index}"), bandwidth_bytes_per_s=BANDWIDTH_BYTES_PER_S, launch_ahead=ahead)
        for index in range(devices)
    ]
    outcome = simulate("elastic", made, applications)
    return {application.name: (application.run_ns or 0) / 1e9 for application in outcome.applications}
