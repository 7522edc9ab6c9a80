"""SIGTERM: the job is asked to end, and ends where nothing is lost."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

_EXIT_STATUS = 128 + signal.SIGTERM


class Interrupted(BaseException):
    """Leaves a wait because of SIGTERM; never leaves the job."""


class Termination:
    """Notes SIGTERM, and ends the process when the job is ready for it.

    Parameters
    ----------
    wake : callable
        Called when the signal comes, so that the job looks at `requested` soon. Within a signal handler: it may set
        something and no more.

    Attributes
    ----------
    requested : bool
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self.requested = False
        self._wake = wake
        self._waits = False
        self._pid = os.getpid()
        self._before: Any = None
        self._installed = False

    def install(self) -> bool:
        """Listen for the signal.

        Returns
        -------
        bool
            False outside the main thread, where Python lets nobody listen.
        """
        if threading.current_thread() is not threading.main_thread():
            return False
        self._before = signal.signal(signal.SIGTERM, self._handle)
        self._installed = True
        return True

    def restore(self) -> None:
        """Give the signal back to whom it belonged."""
        if self._installed:
            self._installed = False
            signal.signal(signal.SIGTERM, self._before if self._before is not None else signal.SIG_DFL)

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """Raise `Interrupted` in the main thread if the signal comes meanwhile, or has come before."""
        self._waits = threading.current_thread() is threading.main_thread()
        try:
            if self.requested:
                raise Interrupted
            yield
        finally:
            self._waits = False

    def leave(self) -> NoReturn:
        """End the process as it would have ended without the job: by the program's own handler, else with 143."""
        before = self._before
        self.restore()
        if callable(before):
            signal.raise_signal(signal.SIGTERM)
        sys.exit(_EXIT_STATUS)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if os.getpid() != self._pid:  # a worker process that was forked off: the job is not its business
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
            return
        self.requested = True
        self._wake()
        if self._waits:
            self._waits = False
            raise Interrupted
