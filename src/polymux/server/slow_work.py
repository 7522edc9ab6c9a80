"""Requests that take long: those of one connection in order, in a thread that is theirs alone while there are any.

So a request that waits, for a task, a copy or somebody's file, holds up only the connection that it came from.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from time import monotonic

MAX_WAITING = 256
"""Requests of one connection that may wait for their turn."""

Work = Callable[[], None]


class SlowWork:
    """Threads that come and go with the work; usable from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[object, deque[Work]] = {}
        self._threads: set[threading.Thread] = set()

    def submit(self, who: object, work: Work) -> bool:
        """Do something after what was submitted for `who` before; False when too much waits already.

        Parameters
        ----------
        who : hashable
            Whose work it is.
        work : callable
            Must not raise.
        """
        with self._lock:
            waiting = self._waiting.get(who)
            if waiting is not None:
                if len(waiting) >= MAX_WAITING:
                    return False
                waiting.append(work)
                return True
            thread = threading.Thread(target=self._run, args=(who,), name="polymux-slow", daemon=True)
            self._waiting[who] = deque([work])
            self._threads.add(thread)
            try:
                thread.start()
            except BaseException:
                del self._waiting[who]
                self._threads.remove(thread)
                raise
            return True

    def forget(self, who: object) -> None:
        """Drop what waits; what is being done goes on."""
        with self._lock:
            if who in self._waiting:
                self._waiting[who].clear()

    def end(self, timeout_s: float) -> bool:
        """Drop all that waits and wait for what is being done; False when some of it goes on after that time."""
        with self._lock:
            for waiting in self._waiting.values():
                waiting.clear()
            threads = list(self._threads)
        deadline = monotonic() + timeout_s
        for thread in threads:
            thread.join(max(0.0, deadline - monotonic()))
        return not any(thread.is_alive() for thread in threads)

    def _run(self, who: object) -> None:
        while self._do_next(who):
            pass

    def _do_next(self, who: object) -> bool:
        """Do one thing, which is not kept afterwards: it may keep a session alive."""
        with self._lock:
            if not self._waiting[who]:
                del self._waiting[who]
                self._threads.remove(threading.current_thread())
                return False
            work = self._waiting[who].popleft()
        work()
        return True
