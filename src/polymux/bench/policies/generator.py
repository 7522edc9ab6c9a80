"""The load: requests over HTTP at given times, whether or not earlier ones have been answered; a process of its own.

``python -m polymux.bench.policies.generator`` reads a plan as JSON from its input and writes what came of each request
to its output.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import os
import sys
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import uvloop

from polymux.bench.policies.processor_time import ProcessorTime
from polymux.core.errors import PolymuxError
from polymux.serving.short_waits import prefer_short_waits

_CONNECTIONS = 16
"""That an open loop has from the beginning; it makes more when all of them wait for answers."""
LEAD_S = 0.2
"""From the start of the process's work to the beginning of an open loop."""
UNANSWERED = 0
_LENGTH = b"\r\ncontent-length:"


@dataclass(frozen=True, slots=True)
class Plan:
    """What to send.

    Attributes
    ----------
    host, port : str, int
        The front end.
    requests : tuple of str
        For each model the request as it goes over the wire, in base64.
    models : tuple of int
        Whose request is sent when.
    times_ns : tuple of int
        Ascending, from 0; empty: closed loop, the next one when an earlier one is answered.
    clients : int
        Of a closed loop.
    drain_s : float
        How long to wait for answers after the last request of an open loop.
    answer_s : float
        How long a closed loop waits for an answer before it gives up as a whole.
    unmeasured : int
        First requests of a closed loop, before processor times are counted.
    pid : int
        Of the front end's process, whose processor time is counted; 0: none is.
    """

    host: str
    port: int
    requests: tuple[str, ...]
    models: tuple[int, ...]
    times_ns: tuple[int, ...] = ()
    clients: int = 0
    drain_s: float = 2.0
    answer_s: float = 60.0
    unmeasured: int = 0
    pid: int = 0

    @property
    def longest_s(self) -> float:
        """How long the load may take at most; when it takes longer, the generator itself hangs."""
        if self.times_ns:
            return LEAD_S + self.times_ns[-1] / 1e9 + self.drain_s
        return self.answer_s * -(-len(self.models) // max(1, self.clients))

    def to_json(self) -> str:
        """Write it down for the process."""
        return json.dumps(asdict(self))


@dataclass(slots=True)
class Sent:
    """What came of the requests, in their order.

    Attributes
    ----------
    status : list of int
        Of HTTP; 0: no answer within the time.
    sent_ns, done_ns : list of int
        From the beginning; the time a request was due (open loop) or sent, and that of its whole answer.
    client_ns, front_ns : tuple of (int, int)
        Processor time of the generator and of the front end, and how long they waited for a core, from when they are
        counted to the last answer.
    counted_ns : tuple of (int, int)
        When that was, on the monotonic clock.
    lag_ns : int
        Longest time that a request was sent after it was due.
    """

    status: list[int]
    sent_ns: list[int]
    done_ns: list[int]
    client_ns: tuple[int, int] = (0, 0)
    front_ns: tuple[int, int] = (0, 0)
    counted_ns: tuple[int, int] = (0, 0)
    lag_ns: int = 0


class _Connection(asyncio.Protocol):
    """A connection that is kept; one request at a time."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._answer: asyncio.Future[int] | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0 or self._answer is None:
            return
        head = bytes(self._buffer[:end]).lower()
        at = head.find(_LENGTH)  # not the one of the protocol, Inference-Header-Content-Length
        length = int(head[at + len(_LENGTH) :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        if len(self._buffer) >= end + 4 + length:
            del self._buffer[: end + 4 + length]
            self._finish(int(head[9:12]))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.transport = None
        self._finish(UNANSWERED)

    def _finish(self, status: int) -> None:
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            answer.set_result(status)

    async def ask(self, request: bytes) -> int:
        if self.transport is None:
            return UNANSWERED
        self._answer = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return await self._answer


class _Generator:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._bodies = [base64.b64decode(request) for request in plan.requests]
        self._idle: deque[_Connection] = deque()
        count = len(plan.models)
        self.sent = Sent([UNANSWERED] * count, [0] * count, [0] * count)
        self._start_ns = 0
        self._counted_from: tuple[int, ProcessorTime, ProcessorTime] | None = None

    async def run(self) -> None:
        for connection in [await self._connect() for _ in range(self._plan.clients or _CONNECTIONS)]:
            self._idle.append(connection)
        gc.freeze()
        if not self._plan.unmeasured:
            self._count()
        if self._plan.times_ns:
            self._start_ns = time.monotonic_ns() + int(LEAD_S * 1e9)
            await self._open_loop()
        else:
            self._start_ns = time.monotonic_ns()
            await self._closed_loop()
        self._stop_counting()

    async def _open_loop(self) -> None:
        tasks = []
        for index, due_ns in enumerate(self._plan.times_ns):
            wait_s = (self._start_ns + due_ns - time.monotonic_ns()) / 1e9
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            self.sent.sent_ns[index] = due_ns
            self.sent.lag_ns = max(self.sent.lag_ns, time.monotonic_ns() - self._start_ns - due_ns)
            tasks.append(asyncio.create_task(self._send(index)))
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=self._plan.drain_s)
            for task in late:
                task.cancel()

    async def _closed_loop(self) -> None:
        indices = iter(range(len(self._plan.models)))
        asked: dict[int, int] = {}

        async def client(number: int) -> None:
            for index in indices:
                if index == self._plan.unmeasured > 0:
                    self._count()
                self.sent.sent_ns[index] = time.monotonic_ns() - self._start_ns
                asked[number] = index
                await self._send(index)
            asked.pop(number, None)

        watching = asyncio.create_task(self._watch(asked))
        try:
            clients = asyncio.gather(*(client(number) for number in range(self._plan.clients)))
            await asyncio.wait((clients, watching), return_when=asyncio.FIRST_COMPLETED)
            await (clients if clients.done() else watching)
        finally:
            watching.cancel()

    async def _watch(self, asked: Mapping[int, int]) -> None:
        """Raise when the answer to a request does not come; a timer for each would cost what is measured."""
        answer_ns = int(self._plan.answer_s * 1e9)
        while True:
            await asyncio.sleep(self._plan.answer_s / 4)
            late_ns = time.monotonic_ns() - self._start_ns - answer_ns
            for index in asked.values():
                if self.sent.sent_ns[index] < late_ns:
                    raise PolymuxError(
                        f"request {index + 1} of {len(self._plan.models)} had no answer within"
                        f" {self._plan.answer_s:g} s, and a closed loop cannot go on without"
                    )

    async def _send(self, index: int) -> None:
        connection = self._idle.popleft() if self._idle else await self._connect()
        status = await connection.ask(self._bodies[self._plan.models[index]])
        self.sent.status[index] = status
        self.sent.done_ns[index] = time.monotonic_ns() - self._start_ns
        if connection.transport is not None:
            self._idle.append(connection)

    def _times(self) -> tuple[int, ProcessorTime, ProcessorTime]:
        pid = self._plan.pid
        front = ProcessorTime.of(pid) if pid else ProcessorTime()
        return time.monotonic_ns(), ProcessorTime.of(os.getpid()), front

    def _count(self) -> None:
        self._counted_from = self._times()

    def _stop_counting(self) -> None:
        if self._counted_from is None:
            return
        (start_ns, *before), (end_ns, *after) = self._counted_from, self._times()
        client, front = (late - early for late, early in zip(after, before, strict=True))
        self.sent.client_ns = (client.ran_ns, client.waited_ns)
        self.sent.front_ns = (front.ran_ns, front.waited_ns)
        self.sent.counted_ns = (start_ns, end_ns)

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(_Connection, self._plan.host, self._plan.port)
        return connection


def read_plan(text: str) -> Plan:
    """Read what `Plan.to_json` has written."""
    fields: dict[str, Any] = json.loads(text)
    lists = {key: tuple(value) for key, value in fields.items() if isinstance(value, list)}
    return Plan(**(fields | lists))


def main() -> None:
    """Carry out the plan on the standard input."""
    generator = _Generator(read_plan(sys.stdin.read()))
    prefer_short_waits()  # as if it were on a machine of its own
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(generator.run())
    except PolymuxError as error:
        sys.exit(str(error))
    print(json.dumps(asdict(generator.sent)))


if __name__ == "__main__":
    main()
