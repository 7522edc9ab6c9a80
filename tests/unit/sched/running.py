"""An engine with devices and a queue, for tests."""

from __future__ import annotations

from collections.abc import Sequence

from polymux.core.decision import (
    Answer,
    Decision,
)
from polymux.core.event import (
    MigrateRequested,
)
from polymux.core.ids import DeviceId, KernelName, QueueId
from tests.contract.driver import Driver, added, opened

Q = QueueId("1.0")
CPU, CPU1, CL = DeviceId("cpu:0"), DeviceId("cpu:1"), DeviceId("opencl:0")
GEMM = KernelName("gemm")


def running(*devices: str, policy: str = "round_robin", queue: str | None = "1.0") -> Driver:
    """Start with some devices, and a queue at the first of them."""
    driver = Driver(policy)
    for device in devices:
        driver.send(added(device))
    if queue is not None:
        driver.send(opened(queue))
    return driver


def migrate(driver: Driver, device: DeviceId, request: int, queue: QueueId = Q) -> list[Decision]:
    return driver.send(MigrateRequested(queue, device, request))


def answers(decisions: Sequence[Decision]) -> list[tuple[int, bool]]:
    return [(d.request, d.ok) for d in decisions if isinstance(d, Answer)]


def only_answer(decisions: Sequence[Decision]) -> Answer:
    (decision,) = decisions
    assert isinstance(decision, Answer)
    return decision
