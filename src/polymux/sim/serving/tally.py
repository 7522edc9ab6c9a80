"""Counts what becomes of each request while a simulation runs, and sums it up at the end."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

import numpy as np

from polymux.core.ids import DeviceId
from polymux.core.serving.decision import Dispatch
from polymux.core.serving.model import ModelName, Request
from polymux.sim.serving.arrivals import SECOND_NS
from polymux.sim.serving.outcome import BatchSpan, DeviceOutcome, ModelOutcome, ServingOutcome
from polymux.sim.serving.scenario import Scenario


class _Answers:
    """Answered requests of a model: per request arrival and deadline, per batch its end and how many it answered."""

    def __init__(self) -> None:
        self.arrivals = array("q")
        self.deadlines = array("q")
        self.ends = array("q")
        self.counts = array("q")


class Tally:
    """Everything that is counted.

    Parameters
    ----------
    scenario : Scenario
    """

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._from, self._to = scenario.warmup_ns, scenario.duration_ns
        seconds = (self._to - self._from) / SECOND_NS
        models = {
            load.model.name: ModelOutcome(load.model.name, load.model.slo_ns, seconds)
            for load in scenario.loads
        }
        devices = {device.id: DeviceOutcome(device.id, device.units, seconds) for device in scenario.devices}
        self._outcome = ServingOutcome(models, devices, [], seconds)
        self._of = {name: (model, _Answers()) for name, model in models.items()}
        self._spans = self._outcome.spans if scenario.keep_spans else None

    def offer(self, model: ModelName, requests: int, measured: int) -> None:
        """Note requests that will arrive; `measured` of them after the warm-up."""
        self._outcome.requests += requests
        self._outcome.models[model].offered += measured

    def refuse(self, request: Request) -> None:
        """Note a rejected request."""
        if request.arrival_ns >= self._from:
            self._outcome.models[request.model].refused += 1

    def end(self, dispatch: Dispatch, items: int, start_ns: int, end_ns: int, *, failed: bool) -> None:
        """Note a batch that ended, with the answers."""
        self.ran(dispatch, items, start_ns, end_ns, failed=failed)
        if not failed:
            self.answered(dispatch.requests, end_ns)

    def ran(self, dispatch: Dispatch, items: int, start_ns: int, end_ns: int, *, failed: bool) -> None:
        """Note a batch that ended, whose answers are yet to come."""
        requests, name = dispatch.requests, dispatch.model
        if self._spans is not None:
            self._spans.append(
                BatchSpan(
                    dispatch.batch, name, dispatch.device, dispatch.units, dispatch.block, start_ns, end_ns,
                    len(requests), items, failed,
                )
            )  # fmt: skip
        model, _ = self._of[name]
        took = min(end_ns, self._to) - max(start_ns, self._from)
        if took > 0:
            model.device_ns += took
            model.unit_ns += took * dispatch.units
            self._outcome.devices[dispatch.device].busy_unit_ns += took * dispatch.units
        if failed:
            model.failed += sum(request.arrival_ns >= self._from for request in requests)
            return
        if self._from <= end_ns <= self._to:
            model.batches += 1
            model.items += items

    def answered(self, requests: Sequence[Request], end_ns: int) -> None:
        """Note answers, all of one model."""
        _, answers = self._of[requests[0].model]
        answers.arrivals.extend([request.arrival_ns for request in requests])
        answers.deadlines.extend([request.deadline_ns for request in requests])
        answers.ends.append(end_ns)
        answers.counts.append(len(requests))

    def finish(self, waiting: Mapping[ModelName, Sequence[Request]], *, stalled: bool) -> ServingOutcome:
        """Sum up; `waiting` is what was left, `stalled` whether nothing would ever have started it."""
        outcome = self._outcome
        for name, (model, answers) in self._of.items():
            left = waiting.get(name, ())
            model.unfinished = sum(request.arrival_ns >= self._from for request in left)
            outcome.stalled += len(left) if stalled else 0
            self._sum_up(model, answers)
        kinds: dict[DeviceId, str] = {device.id: device.kind for device in self._scenario.devices}
        for device in outcome.devices.values():
            power = self._scenario.power.get(kinds[device.id])
            if power is not None:
                device.energy_j = power.energy_j(self._to - self._from, device.utilisation)
        return outcome

    def _sum_up(self, model: ModelOutcome, answers: _Answers) -> None:
        arrivals = np.array(answers.arrivals, np.int64)
        deadlines = np.array(answers.deadlines, np.int64)
        ends = np.repeat(np.array(answers.ends, np.int64), np.array(answers.counts, np.int64))
        in_time = (ends >= self._from) & (ends <= self._to)
        model.throughput_per_s = float(np.count_nonzero(in_time) / model.seconds)
        measured = arrivals >= self._from
        model.answered = int(np.count_nonzero(measured))
        model.on_time = int(np.count_nonzero(measured & (ends <= deadlines)))
        model.latencies_ns = np.sort((ends - arrivals)[measured])
