"""``await task``: one thread per client watches its completions for all event loops that wait."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from polymux.core.errors import Closed, PolymuxError, ServerGone
from polymux.segment import Task

if TYPE_CHECKING:
    from polymux.segment import Client

_ALIVE_CHECK_NS = 200_000_000

Waiting = tuple[Task, "asyncio.Future[None]", asyncio.AbstractEventLoop]


class Notifier:
    """Makes awaitables of tasks.

    Notes
    -----
    The thread starts with the first ``await`` of a task that is not done, sleeps on the client's completion word
    while any task is awaited, and ends with the client.
    """

    def __init__(self) -> None:
        self._client: weakref.ref[Client] | None = None
        self._condition = threading.Condition()
        self._waiting: list[Waiting] = []
        self._thread: threading.Thread | None = None

    def attach(self, client: Client) -> None:
        """Say whose completions to watch."""
        self._client = weakref.ref(client)

    def __call__(self, task: Task) -> Generator[Any, None, tuple[Any, ...]]:
        """Iterate ``await task``: its outputs, or its error."""
        if not task.done():
            loop = asyncio.get_running_loop()
            future: asyncio.Future[None] = loop.create_future()
            self._add((task, future, loop))
            task.want()  # the thread may sleep, and only what it has asked for wakes it
            if task.done():
                _settle(future, None)
            yield from future
        return task.result()

    def _add(self, waiting: Waiting) -> None:
        with self._condition:
            self._waiting.append(waiting)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="polymux-notifier", daemon=True)
                self._thread.start()
            self._condition.notify()

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._waiting:
                    if not self._condition.wait(timeout=1.0) and not self._waiting:
                        self._thread = None  # nobody has waited for a while
                        return
            client = self._client() if self._client is not None else None
            if client is None or client.closed:
                self._deliver_all(Closed("the client was closed while a task was awaited"))
                continue
            self._watch(client)

    def _watch(self, client: Client) -> None:
        """Deliver what is done; else sleep until something is."""
        value = client.completion_value()
        with self._condition:
            for task, _, _ in self._waiting:
                task.want()
        if self._deliver_done() or client.completion_wait(value, _ALIVE_CHECK_NS):
            return
        if client.server_gone and not self._deliver_done():
            self._deliver_all(ServerGone("the server is gone; connect again when it is back"))

    def _deliver_done(self) -> bool:
        with self._condition:
            done = [waiting for waiting in self._waiting if waiting[0].done() or waiting[1].cancelled()]
            if done:
                gone = {id(waiting) for waiting in done}
                self._waiting = [waiting for waiting in self._waiting if id(waiting) not in gone]
        for _, future, loop in done:
            _call(loop, _settle, future, None)
        return bool(done)

    def _deliver_all(self, error: PolymuxError) -> None:
        with self._condition:
            waiting, self._waiting = self._waiting, []
        for _, future, loop in waiting:
            _call(loop, _settle, future, error)


def _settle(future: asyncio.Future[None], error: PolymuxError | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


def _call(loop: asyncio.AbstractEventLoop, *call: Any) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits there any more
        loop.call_soon_threadsafe(*call)
