"""What came of a simulation of jobs."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from polymux.core.ids import DeviceId
from polymux.core.jobs.model import JobId


@dataclass(slots=True)
class JobOutcome:
    """What a job did in the measured time.

    Parameters
    ----------
    runs : float
        That it did, with parts of runs.
    fraction : float
        Of what it would have done alone, on the device where it is fastest, from when it came to when it went.
    taken_back, moves : int
        How often a device was taken away from it, and how often its state came to another device.
    done_ns : int, optional
        When it had done all its runs.
    failure : str, optional
        Why it ended before: out of memory, evicted, rejected.
    """

    runs: float = 0.0
    fraction: float = 0.0
    taken_back: int = 0
    moves: int = 0
    done_ns: int | None = None
    failure: str | None = None


@dataclass(slots=True)
class RequestsOutcome:
    """What became of the requests for a model that came in the measured time.

    Parameters
    ----------
    latencies_ns : list of int
        From arrival to answer; of a trace, from when each was to begin to when it began.
    unanswered_ns : list of int
        For how long those have been there that still wait or run at the end.
    """

    latencies_ns: list[int] = field(default_factory=list)
    unanswered_ns: list[int] = field(default_factory=list)

    def percentile_ns(self, percent: float) -> int | None:
        """Latency within which this percentage was answered (nearest rank); None when there were no requests.

        What was not answered counts with the time that it has taken so far.
        """
        return percentile_ns(self.latencies_ns + self.unanswered_ns, percent)


@dataclass(slots=True)
class JobsOutcome:
    """The whole run.

    Parameters
    ----------
    jobs : dict of JobId to JobOutcome
    requests : dict of str to RequestsOutcome
    waits_ns : list of int
        From when tasks wanted a device to when they could have it.
    peak_nbytes : dict of DeviceId to int
        Most that was in each device's memory at once.
    tasks_ns : dict of DeviceId to int
        For how long tasks ran or wanted each device.
    seconds : float
        Measured time.
    """

    jobs: dict[JobId, JobOutcome]
    requests: dict[str, RequestsOutcome]
    waits_ns: list[int]
    peak_nbytes: dict[DeviceId, int]
    tasks_ns: dict[DeviceId, int]
    seconds: float


def percentile_ns(times_ns: list[int], percent: float) -> int | None:
    """Time that this percentage does not exceed (nearest rank); None when there are none."""
    if not times_ns:
        return None
    rank = max(1, int(np.ceil(percent / 100 * len(times_ns))))
    return int(np.partition(np.asarray(times_ns), rank - 1)[rank - 1])
