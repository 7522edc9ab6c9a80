"""A driver of the engine of requests that checks every decision, and remembers what it told the engine."""

from __future__ import annotations

from polymux.core.decision import WakeAt
from polymux.core.ids import DeviceId
from polymux.core.serving.decision import (
    Dispatch,
    PrepareInstance,
    RejectRequest,
    RetireInstance,
    ServingDecision,
)
from polymux.core.serving.event import (
    BatchEnded,
    InstanceFailed,
    InstanceReady,
    ModelAdded,
    ModelRemoved,
    RequestCancelled,
    RequestsArrived,
    ServingDeviceAdded,
    ServingDeviceLost,
    ServingEvent,
    ServingTick,
)
from polymux.core.serving.model import (
    BatchId,
    ModelName,
    Request,
    RequestId,
    ServedModel,
    ServingDevice,
)
from polymux.policy.serving.registry import load
from polymux.sched.serving.engine import ServingEngine

MS = 1_000_000
MOST_TICKS = 1000


class ServingDriver:
    """Sends events, carries decisions out in its books, and asserts what any driver relies on."""

    def __init__(self, policy: str) -> None:
        self.policy = policy
        self.engine = ServingEngine(load(policy))
        self.now = 0
        self.log: list[tuple[ServingEvent, int, list[ServingDecision]]] = []
        self.models: dict[ModelName, ServedModel] = {}
        self.devices: dict[DeviceId, ServingDevice] = {}
        self.waiting: dict[RequestId, Request] = {}
        self.running: dict[BatchId, Dispatch] = {}
        self.orphans: dict[BatchId, Dispatch] = {}  # run on, or are given up, on a device that was lost
        self.preparing: set[tuple[ModelName, DeviceId, int]] = set()
        self.wakes: set[int] = set()
        self.answered: set[RequestId] = set()
        self.refused: set[RequestId] = set()
        self._last_id = 0

    # ---- what happens ----

    def add_device(self, device: ServingDevice) -> None:
        self.devices[device.id] = device
        self.send(ServingDeviceAdded(device))

    def lose_device(self, device: DeviceId, *, ends_now: bool = True) -> None:
        """Lose a device; its batches fail at once, or whenever `end_orphan` says."""
        del self.devices[device]
        self.preparing = {wish for wish in self.preparing if wish[1] != device}
        self.send(ServingDeviceLost(device, "unplugged"))
        for batch in [batch for batch, dispatch in self.running.items() if dispatch.device == device]:
            if ends_now:
                self.end(batch, failed=True)
            else:
                self.orphans[batch] = self.running.pop(batch)

    def end_orphan(self, batch: BatchId) -> None:
        """Tell at last that a batch has failed with its device."""
        dispatch = self.orphans.pop(batch)
        self.answered |= {request.id for request in dispatch.requests}
        self.send(BatchEnded(batch, True))

    def add_model(self, model: ServedModel) -> None:
        self.models[model.name] = model
        self.send(ModelAdded(model))

    def remove_model(self, name: ModelName) -> None:
        del self.models[name]
        self.preparing = {wish for wish in self.preparing if wish[0] != name}
        self.send(ModelRemoved(name))
        assert not [request for request in self.waiting.values() if request.model == name]

    def make_ready(self, name: ModelName, device: DeviceId, units: int) -> None:
        self.preparing.discard((name, device, units))
        self.send(InstanceReady(name, device, units))

    def fail_to_prepare(self, name: ModelName, device: DeviceId, units: int) -> None:
        self.preparing.discard((name, device, units))
        self.send(InstanceFailed(name, device, units, "no memory"))

    def arrive(self, name: ModelName, count: int, slo_ns: int, items: int = 1) -> list[Request]:
        first = self._last_id + 1
        self._last_id += count
        requests = [
            Request(RequestId(number), name, self.now, self.now + slo_ns, items)
            for number in range(first, first + count)
        ]
        self.waiting |= {request.id: request for request in requests}
        self.send(RequestsArrived(requests))
        return requests

    def cancel(self, request: RequestId) -> None:
        name = self.waiting.pop(request).model
        self.send(RequestCancelled(name, request))

    def end(self, batch: BatchId, *, failed: bool = False) -> None:
        dispatch = self.running.pop(batch)
        self.answered |= {request.id for request in dispatch.requests}
        self.send(BatchEnded(batch, failed))

    def pass_time(self, duration_ns: int) -> None:
        """Let time pass, and wake the policy whenever it asked for it."""
        until = self.now + duration_ns
        ticks = 0
        while self.wakes and min(self.wakes) <= until:
            self.now = max(self.now, min(self.wakes))
            self.wakes = {at for at in self.wakes if at > self.now}
            self.send(ServingTick())
            ticks += 1
            assert ticks < MOST_TICKS, f"the policy was woken {ticks} times in {duration_ns / MS:.0f} ms"
        self.now = until

    # ---- what is relied on ----

    def send(self, event: ServingEvent) -> None:
        decisions = self.engine.handle(event, self.now)
        self.log.append((event, self.now, decisions))
        for decision in decisions:
            self._carry_out(decision)
        self._check_units()
        self._check_waiting()

    def _carry_out(self, decision: ServingDecision) -> None:
        match decision:
            case Dispatch():
                assert decision.device in self.devices
                assert decision.model in self.models
                for request in decision.requests:
                    assert self.waiting.pop(request.id) is request, "a request runs twice"
                    assert request.model == decision.model
                assert decision.batch not in self.running
                self.running[decision.batch] = decision
            case RejectRequest():
                del self.waiting[decision.request.id]
                self.refused.add(decision.request.id)
                assert decision.reason, "a client is to be told why"
                assert decision.retry_at_ns is None or decision.retry_at_ns > self.now
            case PrepareInstance():
                self.preparing.add((decision.model, decision.device, decision.units))
            case RetireInstance():
                pass
            case WakeAt():
                self.wakes.add(max(decision.at_ns, self.now + 1))

    def _check_units(self) -> None:
        for device_id, device in self.devices.items():
            here = [dispatch for dispatch in self.running.values() if dispatch.device == device_id]
            assert sum(dispatch.units for dispatch in here) <= device.units
            if device.blocks:
                used = [unit for dispatch in here for unit in dispatch.block or ()]
                assert len(used) == len(set(used)) == sum(dispatch.units for dispatch in here)

    def _check_waiting(self) -> None:
        waiting = {request.id for state in self.engine.view.models.values() for request in state.waiting}
        assert waiting == set(self.waiting), "a request was lost"
        view = self.engine.view
        assert set(view.waiting) == {name for name, state in view.models.items() if state.waiting}

    def startable(self) -> list[ModelName]:
        """Models with waiting requests that could be started now."""
        view = self.engine.view
        return [
            name
            for name, state in view.models.items()
            if state.waiting
            and any(
                set(device.startable) & state.ready.get(device_id, set())
                for device_id, device in view.devices.items()
            )
        ]

    def check_not_stuck(self) -> None:
        """Whatever may start and does not: something that is bound to happen has the policy asked again."""
        if not (self.running or self.preparing or self.wakes):
            assert not self.startable(), "nothing runs, something could, and the policy sleeps"

    def settle(self, steps: int = 3000) -> None:
        """End what runs and prepare what is asked for, until nothing is left that could start."""
        for _ in range(steps):
            self.check_not_stuck()
            if self.preparing:
                self.make_ready(*min(self.preparing))
            elif self.running:
                batch = min(self.running)
                self.pass_time(max(1, self.running[batch].expected_ns or 5 * MS))
                if batch in self.running:
                    self.end(batch)
            elif self.wakes and self.waiting:
                self.pass_time(min(self.wakes) - self.now)
            else:
                break
        left = [request for request in self.waiting.values() if request.model in self.startable()]
        assert not left, f"{len(left)} requests still wait after {steps} steps"

    def check_replay(self) -> None:
        """The same events at the same times lead a fresh policy to the same decisions."""
        again = ServingEngine(load(self.policy))
        for event, now, decisions in self.log:
            assert again.handle(event, now) == decisions
