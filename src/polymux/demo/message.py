"""What the demo's processes tell the one that started them. Times are ns of the machine's monotonic clock."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection

__all__ = ["Answer", "Answers", "Ended", "Failed", "Finding", "Message", "Prepared", "Steps", "Teller"]

_INTERVAL_NS = 100_000_000


@dataclass(frozen=True, slots=True)
class Answer:
    """A request over HTTP that came to its end.

    Attributes
    ----------
    model : str
    start_ns, end_ns : int
        When it was sent, and when its answer had been read.
    problem : str
        Why it counts as wrong; empty when the answer agrees with the reference.
    failed : bool
        Whether there was no answer at all: an error of the server or of the connection.
    """

    model: str
    start_ns: int
    end_ns: int
    problem: str = ""
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Prepared:
    """A process is ready to begin."""

    application: str


@dataclass(frozen=True, slots=True)
class Answers:
    """What has happened since the last such message.

    Attributes
    ----------
    sent : tuple of str
        Model of each request sent.
    answers : tuple of Answer
    note : str
        What the application does just now.
    """

    application: str
    sent: tuple[str, ...]
    answers: tuple[Answer, ...]
    note: str


@dataclass(frozen=True, slots=True)
class Steps:
    """How far the numerical application is.

    Attributes
    ----------
    steps : int
        Time steps done, or checked.
    longest_ns : int
        Longest time that a batch of steps took so far, from submission to result.
    note : str
        What it does just now.
    """

    steps: int
    longest_ns: int
    note: str


@dataclass(frozen=True, slots=True)
class Finding:
    """A result held against what people say is right, or against a computation of another kind.

    Attributes
    ----------
    what : str
        What was compared with what.
    result : str
        How it came out.
    good : bool or None
        Whether that is what it has to be; None where it may come out in any way.
    """

    what: str
    result: str
    good: bool | None


@dataclass(frozen=True, slots=True)
class Ended:
    """A process has done its part."""

    application: str
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class Failed:
    """A process cannot go on."""

    application: str
    reason: str


Message = Prepared | Answers | Steps | Ended | Failed


class Teller:
    """Collects what the threads of a process have to tell, and tells it ten times a second.

    Parameters
    ----------
    application : str
    connection : Connection
        To the process that started this one.
    """

    def __init__(self, application: str, connection: Connection) -> None:
        self._application = application
        self._connection = connection
        self._lock = threading.Lock()
        self._sent: list[str] = []
        self._answers: list[Answer] = []
        self._note = ""
        self._told_ns = 0

    def sent(self, model: str) -> None:
        """Count a request as sent."""
        with self._lock:
            self._sent.append(model)

    def answered(self, answer: Answer) -> None:
        """Report the end of a request."""
        with self._lock:
            self._answers.append(answer)
            self._tell_now_and_then()

    def note(self, text: str) -> None:
        """Say what the application does just now."""
        with self._lock:
            self._note = text

    def tell(self, message: Message) -> None:
        """Send a message at once, after what has been collected."""
        with self._lock:
            self._tell_collected()
            self._connection.send(message)

    def _tell_now_and_then(self) -> None:
        if time.monotonic_ns() - self._told_ns >= _INTERVAL_NS:
            self._tell_collected()

    def _tell_collected(self) -> None:
        self._told_ns = time.monotonic_ns()
        if self._sent or self._answers:
            self._connection.send(
                Answers(self._application, tuple(self._sent), tuple(self._answers), self._note)
            )
            self._sent, self._answers = [], []
