"""A scheduler over models that compute in this process, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from polymux.core.decision import WakeAt
from polymux.core.dtype import DType
from polymux.core.errors import PolymuxError
from polymux.core.ids import DeviceId, StreamId
from polymux.core.serving.decision import PolicyDecision, RejectRequest, Start
from polymux.core.serving.event import ServingEvent
from polymux.core.serving.model import ModelName, Request, ServedModel, ServingDevice
from polymux.core.serving.view import ServingView
from polymux.perfmodel.surface import TableSurface
from polymux.serving.scheduling.machine import Block, Machine
from polymux.serving.scheduling.merging import Deliver, Tensors, run_together
from polymux.serving.scheduling.scheduler import Scheduler
from polymux.serving.scheduling.statistics import Statistics
from tests.unit.serving.fake_model import FakeBuffer
from tests.unit.serving.scheduling import virtual_time

CPU = DeviceId("cpu:0")
MS = 1_000_000
BLOCKS = (frozenset({0}), frozenset({1}), frozenset({0, 1}))
DEVICE = ServingDevice(CPU, 2, (1, 2), "kind", BLOCKS)
MACHINE = Machine((DEVICE,), {(CPU, block): StreamId(f"cpu:0/{index}") for index, block in enumerate(BLOCKS)})


class Policy:
    """As many requests as wait and fit, of whichever model; told to refuse, to wait or to fail."""

    made: Policy

    def __init__(self) -> None:
        self.refuse: Callable[[Request], RejectRequest | None] = lambda _: None
        self.chosen: Callable[[ServingView, int], Sequence[PolicyDecision]] | None = None
        self.events: list[ServingEvent] = []
        self.times: list[int] = []
        self.wait_until = 0

    @classmethod
    def make(cls, option: str) -> Policy:
        Policy.made = cls()
        return Policy.made

    def admit(self, view: ServingView, request: Request, now: int) -> RejectRequest | None:
        return self.refuse(request)

    def decide(self, view: ServingView, event: ServingEvent, now: int) -> Sequence[PolicyDecision]:
        if not self.events or self.events[-1] is not event:
            self.events.append(event)
            self.times.append(now)
        if self.chosen is not None:
            return self.chosen(view, now)
        if now < self.wait_until:
            return [WakeAt(self.wait_until)]
        for name, state in view.models.items():
            for device in view.devices.values():
                shares = state.ready.get(device.spec.id, set()) & set(device.startable)
                if state.waiting and shares:
                    most = state.max_batch(device.spec)
                    count = items = 0
                    for request in state.waiting:
                        items += request.items
                        count += items <= most
                    return [Start(name, device.spec.id, max(shares), count)]
        return []


class Model:
    """Doubles its input; a value of 13 is more than it can bear. Also the lane that its batches run on."""

    def __init__(self, name: str = "m/1", *, take_ms: float = 10, batched: bool = True) -> None:
        self.name = ModelName(name)
        self.take_ms = take_ms
        self.batched = batched
        self.live: set[FakeBuffer] = set()
        self.ran: list[int] = []
        self.blocks: list[Block] = []
        self.prepared: list[int] = []
        self.retired: list[int] = []
        self.problem: PolymuxError | None = None
        self.prepare_ms = 0.0
        self.closed = False

    def input(self, *values: float) -> FakeBuffer:
        return FakeBuffer(np.array(values, np.float32), self.live)

    def allocate(self, shape: tuple[int, ...], dtype: DType) -> FakeBuffer:
        return FakeBuffer(np.empty(shape, dtype.to_numpy()), self.live)

    async def run_task(self, inputs: Tensors) -> Tensors:
        array = inputs[0].numpy().copy()
        self.ran.append(len(array))
        await asyncio.sleep(self.take_ms / 1e3)
        if self.problem is not None:
            raise self.problem
        if 13 in array:
            raise PolymuxError("13 is bad luck")
        return [FakeBuffer(array * 2, self.live)]

    async def run(
        self, device: DeviceId, block: Block, requests: Sequence[Tensors], deliver: Deliver
    ) -> PolymuxError | None:
        self.blocks.append(block)
        return await run_together(_Lane(self), [DType.F32], requests, self.batched, deliver)

    async def prepare(self, device: DeviceId, units: int) -> None:
        if self.prepare_ms:
            await asyncio.sleep(self.prepare_ms / 1e3)
        if self.problem is not None:
            raise self.problem
        self.prepared.append(units)

    def retire(self, device: DeviceId, units: int) -> None:
        self.retired.append(units)

    def close(self) -> None:
        self.closed = True


class _Lane:
    def __init__(self, model: Model) -> None:
        self._model = model
        self.allocate = model.allocate
        self.run = model.run_task

    def close(self) -> None:
        pass


class Rig:
    """A scheduler with the policy above; call inside a loop in virtual time."""

    def __init__(self, clock: Callable[[], int] = virtual_time.clock, policy: str = "rig") -> None:
        self.statistics = Statistics(clock)
        self.scheduler = Scheduler(MACHINE, policy, self.statistics, clock)
        self.policy = Policy.made
        self.clock = clock

    async def add(
        self, model: Model, *, slo_ms: float = 100, max_batch: int = 8, shares: Sequence[int] = (1, 2)
    ) -> Model:
        table = tuple(tuple(round(model.take_ms * MS) for _ in (1, max_batch)) for _ in (1, 2))
        surface = TableSurface((1, 2), (1, max_batch), table)
        served = ServedModel(model.name, round(slo_ms * MS), {"kind": surface}, max_batch=max_batch)
        await self.scheduler.add(served, model, {CPU: shares})
        return model

    async def ask(
        self, model: Model, *values: float, within_ms: float = 100, expires: bool = False
    ) -> list[float]:
        """Send a request and return the answer."""
        buffer = model.input(*values)
        now = self.clock()
        try:
            outputs = await self.scheduler.answer(
                model.name, [buffer], len(values), now, now + round(within_ms * MS), expires=expires
            )
            answer: list[float] = outputs[0].numpy().tolist()
            for output in outputs:
                output.close()
        finally:
            buffer.close()
        return answer

    def count(self, metric: str, **labels: str) -> float:
        """Return a value of the statistics."""
        for family in self.statistics.collect():
            for sample in family.samples:
                if sample.name == f"polymux_serving_{metric}" and labels.items() <= sample.labels.items():
                    return sample.value
        return 0.0


def outcome(result: Any) -> Any:
    """Return an answer, or the text of an error."""
    return str(result) if isinstance(result, BaseException) else result
