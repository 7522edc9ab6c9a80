"""What came of a simulation: who ran what where and when, as values."""

from __future__ import annotations

from dataclasses import dataclass, field

from polymux.core.ids import DeviceId, QueueId, StreamId


@dataclass(frozen=True, slots=True)
class Span:
    """One task.

    Parameters
    ----------
    queue : QueueId
    number : int
        In its queue, from 1.
    stream : StreamId
    start_ns, end_ns : int
        Its copies included.
    copied_nbytes : int
        What had to be copied before it could run.
    """

    queue: QueueId
    number: int
    stream: StreamId
    start_ns: int
    end_ns: int
    copied_nbytes: int = 0


@dataclass(slots=True)
class ApplicationOutcome:
    """What one application got.

    Parameters
    ----------
    name : str
    arrived_ns : int
    ended_ns : int, optional
        End of its last task; None: it did not finish.
    busy_ns : dict
        Device time, by device.
    migrations : int
    refused : list of str
        Why its queues were not admitted.
    """

    name: str
    arrived_ns: int
    ended_ns: int | None = None
    busy_ns: dict[DeviceId, int] = field(default_factory=dict)
    migrations: int = 0
    refused: list[str] = field(default_factory=list)

    @property
    def run_ns(self) -> int | None:
        """From its arrival to the end of its last task."""
        return None if self.ended_ns is None else self.ended_ns - self.arrived_ns


@dataclass(slots=True)
class Outcome:
    """The whole run.

    Parameters
    ----------
    applications : list of ApplicationOutcome
        In the order of the model.
    spans : list of Span
        Every task, by its end.
    """

    applications: list[ApplicationOutcome]
    spans: list[Span]

    def application(self, name: str) -> ApplicationOutcome:
        """Find an application by name; `KeyError` when there is none."""
        for application in self.applications:
            if application.name == name:
                return application
        raise KeyError(name)
