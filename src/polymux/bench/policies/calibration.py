"""What profiles do not say about a live load on this machine: what the front end and its clients cost, measured apart.

Four things are measured before any policy is. The processor time of a request besides its batch: a front end refuses
every request after it has read it whole. How fast that work goes on beside batches, and how much these lose by it:
the same, while batches run one after the other through a connection of their own. And how much longer a batch takes
through the front end than without, alone: handing it over, and putting the inputs of several requests together.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from statistics import fmean, median

import numpy as np

from polymux.bench.policies.bare import BareBatches
from polymux.bench.policies.generator import Plan
from polymux.bench.policies.live import FrontEnd, Outcome, closed_loop, send
from polymux.bench.policies.workload import Served, Workload
from polymux.bench.report import Progress
from polymux.core.errors import PolymuxError
from polymux.core.serving.model import ModelName
from polymux.sim.serving import Host, HostWork

READ_NBYTES = 256 * 1024
"""What the front end's event loop reads of a connection before it looks at others."""
_IMPOSSIBLE_MS, _LONG_MS = 0.01, 60_000.0
_EMPTY = b"GET /v2/health/live HTTP/1.1\r\nhost: bench\r\n\r\n"
_UNMEASURED = 10
_LEAST_SPEED = 0.05
_LEAST_BATCHES = 10
"""That run beside requests in each round, and more where the requests take longer by them."""
_ROUNDS = 3
"""In which what is compared takes turns; the median counts."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What a simulation needs besides the profiles.

    Attributes
    ----------
    host : Host
        The front end and the load generator on the cores of the device.
    """

    host: Host


@dataclass(frozen=True, slots=True)
class _Exchange:
    """A request and its refusal: processor times of client and front end, and time on the clock."""

    client_ns: float
    front_ns: float
    clock_ns: int

    @property
    def ran_ns(self) -> float:
        return self.client_ns + self.front_ns


@dataclass(frozen=True, slots=True)
class _Together:
    """Batches beside exchanges: the part of the time that these wanted a core, their speed, what batches lost."""

    active: float
    speed: float
    slowdown: float


def calibrate(
    workload: Workload, bare: BareBatches, socket: str, exchanges: int, progress: Progress
) -> Calibration:
    """Measure it.

    Parameters
    ----------
    workload : Workload
    bare : BareBatches
        On the server, which nothing else should use.
    socket : str
        Of the server.
    exchanges : int
        How many requests of each kind are sent.
    progress : callable
        Is told what is being done.
    """
    progress("what a request costs besides its batch")
    with FrontEnd(workload, socket, "spacetime", slo_ms=_IMPOSSIBLE_MS) as front:
        empty = _exchange(send(front, _plan(front, _EMPTY, exchanges)), exchanges)
        costs = [
            _exchange(_refused(front, workload, index, exchanges), exchanges)
            for index in range(len(workload.models))
        ]
        pressed: dict[str, _Together] = {}
        beside: dict[str, _Together] = {}
        for index, model in enumerate(workload.models):
            progress(f"{model.name} beside the front end")
            for units, found in ((bare.units[-1], pressed), (bare.units[0], beside)):
                found[model.name] = _together(front, workload, index, bare, units, costs[index], exchanges)
    progress("batches through the front end")
    with FrontEnd(workload, socket, "unscheduled") as front:
        first = [_first(front, workload, index, bare, exchanges, cost) for index, cost in enumerate(costs)]
    first_ns = {model.name: taken_ns for model, (taken_ns, _) in zip(workload.models, first, strict=True)}
    further_ns = _further(workload, socket, bare, exchanges, first_ns)
    work = {
        _name(model): replace(
            _work(model, cost, empty, answer_ns), start_ns=start_ns, further_ns=further_ns[model.name]
        )
        for model, cost, (start_ns, answer_ns) in zip(workload.models, costs, first, strict=True)
    }
    return Calibration(_host(workload, work, pressed, beside))


def _plan(front: FrontEnd, request: bytes, count: int) -> Plan:
    encoded = base64.b64encode(request).decode()
    models = (0,) * (count + _UNMEASURED)
    return Plan("127.0.0.1", front.port, (encoded,), models, clients=1, unmeasured=_UNMEASURED)


def _refused(front: FrontEnd, workload: Workload, index: int, count: int) -> Outcome:
    request = base64.b64decode(workload.models[index].request)
    outcome = send(front, _plan(front, request, count))
    if not outcome.refused.all():
        raise PolymuxError(
            f"{np.count_nonzero(~outcome.refused)} of {len(outcome.refused)} requests with an impossible deadline were"
            f" not refused: {front.log[-1000:].strip()}"
        )
    return outcome


def _exchange(outcome: Outcome, count: int) -> _Exchange:
    begin_ns, end_ns = outcome.counted_ns
    return _Exchange(
        outcome.client.ran_ns / count, outcome.front.ran_ns / count, round((end_ns - begin_ns) / count)
    )


def _work(model: Served, cost: _Exchange, empty: _Exchange, answer_ns: int) -> HostWork:
    """Divide the cost of a request: one without a body is all way back; an answer costs more than a refusal there."""
    pieces = -(-len(base64.b64decode(model.request)) // READ_NBYTES)
    return HostWork(
        max(0, round(cost.client_ns - empty.client_ns)),
        max(0, round(cost.front_ns - empty.front_ns)),
        round(empty.front_ns) + answer_ns,
        round(empty.client_ns),
        pieces,
    )


def _together(
    front: FrontEnd,
    workload: Workload,
    index: int,
    bare: BareBatches,
    units: int,
    cost: _Exchange,
    count: int,
) -> _Together:
    """Run batches of one item on a share, alone and while requests for the same model are refused, by turns."""
    name = workload.models[index].name
    found = []
    before_ns = bare.repeat(name, units).mean_ns
    for _ in range(_ROUNDS):
        sent = max(count // _ROUNDS, round(_LEAST_BATCHES * before_ns / cost.clock_ns))
        outcome, batches = _beside(front, workload, index, bare, units, sent)
        after_ns = bare.repeat(name, units).mean_ns
        begin_ns, end_ns = outcome.counted_ns
        taken = [took for start, took in batches if begin_ns <= start and start + took <= end_ns]
        both = outcome.client + outcome.front
        wanted_ns = both.ran_ns + both.waited_ns
        found.append(
            _Together(
                min(1.0, wanted_ns / (end_ns - begin_ns)),
                min(1.0, cost.ran_ns * sent / max(1, wanted_ns)),
                max(1.0, 2 * fmean(taken) / (before_ns + after_ns)) if taken else 1.0,
            )
        )
        before_ns = after_ns
    return _Together(*(median(getattr(one, field.name) for one in found) for field in fields(_Together)))


def _beside(
    front: FrontEnd, workload: Workload, index: int, bare: BareBatches, units: int, count: int
) -> tuple[Outcome, list[tuple[int, int]]]:
    """Run batches for as long as requests are refused; also return when they began, and how long they took."""
    batches: list[tuple[int, int]] = []
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(_refused, front, workload, index, count)
        while not sending.done():
            start_ns = time.monotonic_ns()
            batches.append((start_ns, bare.once(workload.models[index].name, units)))
        return sending.result(), batches


def _host(
    workload: Workload,
    work: Mapping[ModelName, HostWork],
    pressed: Mapping[str, _Together],
    beside: Mapping[str, _Together],
) -> Host:
    apart = workload.device.shares[0] < workload.device.units
    return Host(
        workload.device.id,
        work,
        max(_LEAST_SPEED, fmean(found.speed for found in pressed.values())),
        {
            _name(model): (1 - 1 / found.slowdown) / max(1e-9, found.active * found.speed)
            for model in workload.models
            for found in (pressed[model.name],)
        },
        {
            _name(model): (found.slowdown - 1) / max(1e-9, found.active)
            for model in workload.models
            for found in (beside[model.name],)
            if apart
        },
        max(_LEAST_SPEED, fmean(found.speed for found in beside.values())) if apart else 1.0,
    )


def _first(
    front: FrontEnd, workload: Workload, index: int, bare: BareBatches, count: int, cost: _Exchange
) -> tuple[int, int]:
    """Batches of one request: how much longer they take, and what else a request costs that is not refused."""
    model, units = workload.models[index], bare.units[-1]
    count = max(_UNMEASURED, count // 4)
    closed_loop(front, workload, _UNMEASURED, 1, only=index)
    longer, ran = [], []
    before_ns, before = bare.repeat(model.name, units).mean_ns, _batches(front, model)
    for _ in range(_ROUNDS):
        outcome = send(front, _plan(front, base64.b64decode(model.request), count))
        after = _batches(front, model)
        after_ns = bare.repeat(model.name, units).mean_ns
        batch_ns = 1e9 * (after[1] - before[1]) / max(1.0, after[0] - before[0])
        longer.append(batch_ns - (before_ns + after_ns) / 2)
        ran.append(outcome.front.ran_ns / count - cost.front_ns)
        before_ns, before = after_ns, after
    start_ns = max(0, round(median(longer)))
    return start_ns, max(0, round(median(ran)) - start_ns)


def _further(
    workload: Workload, socket: str, bare: BareBatches, count: int, first_ns: Mapping[str, int]
) -> dict[str, int]:
    """Batches as large as they get, by the front end's own count of them."""
    batch, units = min(model.surface.batches[-1] for model in workload.models), bare.units[-1]
    if batch == 1:
        return dict.fromkeys(first_ns, 0)
    found = {}
    with FrontEnd(workload, socket, f"fixed_batch={batch}", slo_ms=_LONG_MS) as front:
        for index, model in enumerate(workload.models):
            closed_loop(front, workload, 2 * batch, batch, only=index)
            alone_ns = bare.repeat(model.name, units, batch).mean_ns
            before = _batches(front, model)
            closed_loop(front, workload, batch * max(4, count // (4 * batch)), batch, only=index)
            after = _batches(front, model)
            alone_ns = (alone_ns + bare.repeat(model.name, units, batch).mean_ns) / 2
            mean_ns = 1e9 * (after[1] - before[1]) / max(1.0, after[0] - before[0])
            found[model.name] = max(0, round(mean_ns - alone_ns) - first_ns[model.name]) // (batch - 1)
    return found


def _batches(front: FrontEnd, model: Served) -> tuple[float, float]:
    """Count a model's batches, and sum up their seconds, as the front end tells them."""
    counts, seconds = front.metric("batch_seconds_count"), front.metric("batch_seconds_sum")
    return counts.get(model.name, 0.0), seconds.get(model.name, 0.0)


def _name(model: Served) -> ModelName:
    return ModelName(f"{model.name}/1")
