"""The load generator against a front end that is a socket of the test."""

from __future__ import annotations

import base64
import socket
import threading
from dataclasses import dataclass, replace
from typing import Any

import pytest

from polymux.bench.policies import live
from polymux.bench.policies.generator import Plan
from polymux.core.errors import PolymuxError

_REQUEST = base64.b64encode(b"GET / HTTP/1.1\r\n\r\n").decode()


@dataclass
class Silent:
    """A front end that takes connections and says nothing."""

    port: int
    pid: int = 0
    log: str = "model resnet50 hangs"


@pytest.fixture
def silent() -> Any:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield Silent(listener.getsockname()[1])


def test_a_closed_loop_that_misses_an_answer_ends_with_what_the_front_end_said(silent: Any) -> None:
    plan = Plan("127.0.0.1", silent.port, (_REQUEST,), (0, 0, 0), clients=1, answer_s=0.05)
    with pytest.raises(
        PolymuxError, match=r"request 1 of 3 had no answer within 0.05 s.*model resnet50 hangs"
    ):
        live.send(silent, plan)


def test_a_closed_loop_whose_requests_are_answered_sends_all_of_them() -> None:
    def answer(connection: socket.socket) -> None:
        with connection:
            while connection.recv(4096):
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")

    def take(listener: socket.socket) -> None:
        for _ in range(2):
            threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=take, args=(listener,), daemon=True).start()
        port = listener.getsockname()[1]
        plan = Plan("127.0.0.1", port, (_REQUEST,), (0,) * 20, clients=2, unmeasured=3)
        outcome = live.send(Silent(port), plan)  # type: ignore[arg-type]
    assert (outcome.latencies_ns >= 0).sum() == 20


def test_an_open_loop_without_answers_ends_after_its_time(silent: Any) -> None:
    plan = Plan("127.0.0.1", silent.port, (_REQUEST,), (0,), times_ns=(0,), drain_s=0.05)
    outcome = live.send(silent, plan)
    assert outcome.latencies_ns.tolist() == [-1]


def test_a_generator_that_hangs_is_ended_and_told(silent: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_SPARE_S", 0.0)
    plan = Plan("127.0.0.1", silent.port, (_REQUEST,), (0,), clients=1, answer_s=0.001)
    with pytest.raises(PolymuxError, match=r"did not end within 0.001 s; the front end said: model resnet50"):
        live.send(silent, plan)


def test_the_longest_time_of_a_plan_has_all_its_answers() -> None:
    plan = Plan("127.0.0.1", 1, (_REQUEST,), (0,) * 5, clients=2, answer_s=10.0)
    assert plan.longest_s == 30.0
    assert replace(plan, times_ns=(0, 4_000_000_000), drain_s=1.0).longest_s == pytest.approx(5.2)


def test_a_front_end_that_says_nothing_is_ended_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "START_TIMEOUT_S", 0.05)
    front = live.HttpFrontEnd([])
    front._words = ["sleep", "1000"]
    with pytest.raises(PolymuxError, match="did not get ready"):
        front.__enter__()
