"""Runs a front end under a policy, and a load against it."""

from __future__ import annotations

import json
import re
import select
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from polymux.bench.policies.generator import UNANSWERED, Plan, Sent
from polymux.bench.policies.processor_time import ProcessorTime
from polymux.bench.policies.workload import Workload
from polymux.core.errors import PolymuxError

START_TIMEOUT_S = 120.0
_SPARE_S = 60.0
"""For a generator to start and to end, beside its load."""


class HttpFrontEnd:
    """``polymux serve`` in a process of its own as long as the ``with`` block lasts.

    Parameters
    ----------
    arguments : sequence of str
        Of ``polymux serve``, without ``--port``.

    Raises
    ------
    PolymuxError
        On entering, if it does not get ready, with what it said.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        self._words = [sys.executable, "-m", "polymux.cli", "serve", *arguments, "--port", "0"]
        self.port = 0

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="polymux-bench-")
        self._log = Path(self._folder.name) / "log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                self._words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True
            )
        try:
            assert self._process.stdout is not None
            told, _, _ = select.select([self._process.stdout], [], [], START_TIMEOUT_S)
            first = self._process.stdout.readline() if told else ""
            if "http://" not in first:
                raise self._failed()
            self.port = int(first.partition("http://")[2].split()[0].rpartition(":")[2])
            self._wait_until_ready()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    @property
    def pid(self) -> int:
        """Of its process."""
        return self._process.pid

    @property
    def log(self) -> str:
        """What it has said so far."""
        return self._log.read_text()

    def metric(self, name: str) -> dict[str, float]:
        """Return the values of one of its metrics, ``polymux_serving_NAME``, by the name of the model."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        found = re.findall(rf'^polymux_serving_{name}\{{model="([^"/]*)/\d+"\}} (\S+)$', text, re.MULTILINE)
        return {model: float(value) for model, value in found}

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v2/health/ready", timeout=5):
                    return
            except OSError:
                time.sleep(0.05)
            if "is not served" in self.log:  # a model could not be loaded: it never gets ready
                break
        raise self._failed()

    def _failed(self) -> PolymuxError:
        return PolymuxError(f"the benchmark's front end did not get ready: {self.log[-2000:].strip()}")

    def _stop(self) -> None:
        self._process.terminate()  # a backlog is given up: what has not ended after a second is killed
        try:
            self._process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._folder.cleanup()


class FrontEnd(HttpFrontEnd):
    """A front end that serves a workload under a policy.

    Parameters
    ----------
    workload : Workload
    socket : str
        Of the server.
    policy : str
    profiled : bool
        Whether it knows the workload's profiles.
    slo_ms : float, optional
        Deadline of all models, in place of the workload's.
    """

    def __init__(
        self,
        workload: Workload,
        socket: str,
        policy: str,
        *,
        profiled: bool = True,
        slo_ms: float | None = None,
    ) -> None:
        store = workload.store if profiled else workload.store.with_name("none.db")
        words = [str(workload.repository), "--socket", socket, "--store", str(store), "--policy", policy]
        for model in workload.models if slo_ms is not None else ():
            words += ["--slo-ms", f"{model.name}={slo_ms:g}"]
        super().__init__(words)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a load.

    Attributes
    ----------
    models : array of int
        Whose each request was.
    latencies_ns : array of int
        From when it was due to its answer; -1: none came.
    refused : array of bool
    seconds : float
        Length of the load.
    client, front : ProcessorTime
        Of the generator and of the front end, while they were counted.
    counted_ns : tuple of (int, int)
        From when to when that was, on the monotonic clock.
    lag_ns : int
        Longest time that a request was sent late.
    failed : int
        Answers that were neither 200 nor a refusal.
    steady_per_s : float
        Answers a second of a closed loop, from the one with which every client has had its first to the last.
    """

    models: NDArray[np.int64]
    latencies_ns: NDArray[np.int64]
    refused: NDArray[np.bool_]
    seconds: float
    client: ProcessorTime
    front: ProcessorTime
    counted_ns: tuple[int, int]
    lag_ns: int
    failed: int
    steady_per_s: float


def send(front: HttpFrontEnd, plan: Plan, seconds: float = 0.0) -> Outcome:
    """Carry out a plan; `seconds` is its length, by default that until the last answer.

    Raises
    ------
    PolymuxError
        If the generator fails, or a closed loop misses an answer, with what the front end said.
    """
    limit_s = plan.longest_s + _SPARE_S
    try:
        done = subprocess.run(
            [sys.executable, "-m", "polymux.bench.policies.generator"],
            input=replace(plan, pid=front.pid).to_json(),
            capture_output=True,
            text=True,
            check=False,
            timeout=limit_s,
        )
    except subprocess.TimeoutExpired:
        raise _no_load(f"did not end within {limit_s:g} s", front) from None
    if done.returncode:
        raise _no_load(f"failed: {done.stderr[-2000:].strip()}", front)
    sent = Sent(**json.loads(done.stdout))
    status, due, end = (np.array(values, np.int64) for values in (sent.status, sent.sent_ns, sent.done_ns))
    answered = status == 200
    return Outcome(
        np.array(plan.models, np.int64),
        np.where(answered, end - due, -1),
        status == 503,
        seconds or float(end[answered].max(initial=1)) / 1e9,
        ProcessorTime(*sent.client_ns),
        ProcessorTime(*sent.front_ns),
        (sent.counted_ns[0], sent.counted_ns[1]),
        sent.lag_ns,
        int(np.count_nonzero(~answered & (status != 503) & (status != UNANSWERED))),
        _steady_per_s(np.sort(end[answered]), plan.clients),
    )


def _no_load(what: str, front: HttpFrontEnd) -> PolymuxError:
    return PolymuxError(
        f"the load generator {what}; the front end said: {front.log[-2000:].strip() or 'nothing'}"
    )


def _steady_per_s(ends_ns: NDArray[np.int64], clients: int) -> float:
    if not 0 < clients < len(ends_ns):
        return 0.0
    return float((len(ends_ns) - clients) / max(1, ends_ns[-1] - ends_ns[clients - 1]) * 1e9)


def open_loop(front: FrontEnd, workload: Workload, rate_per_s: float, seconds: float, seed: int) -> Outcome:
    """Send the load of a rate and seed."""
    times, models = workload.arrivals(rate_per_s, seconds, seed)
    drain_s = 2 * max(model.slo_ns for model in workload.models) / 1e9
    plan = Plan(
        "127.0.0.1",
        front.port,
        tuple(model.request for model in workload.models),
        tuple(models.tolist()),
        tuple(times.tolist()),
        drain_s=drain_s,
    )
    return send(front, plan, seconds)


def closed_loop(
    front: FrontEnd, workload: Workload, count: int, clients: int, seed: int = 0, only: int | None = None
) -> Outcome:
    """Send so many requests, always as many at a time as there are clients; of the mix, or for one model."""
    requests = tuple(model.request for model in workload.models)
    models = (only,) * count if only is not None else tuple(workload.mix(count, seed).tolist())
    return send(front, Plan("127.0.0.1", front.port, requests, models, clients=clients))
