"""Jobs beside tasks of queues in virtual time: the engine of jobs and its policies, driven by a model of kernels.

`program` says what a run consists of, `scenario` what is simulated, `simulation` plays it out (`training` knows where a
job is in its runs, `requests` the tasks of a device, `stream` what happens when nobody keeps them apart), `outcome`
says what came of it. The same scenario and seed give the same outcome, to the nanosecond.
"""

from polymux.sim.jobs.outcome import JobOutcome, JobsOutcome, RequestsOutcome
from polymux.sim.jobs.program import Program
from polymux.sim.jobs.scenario import JobLoad, JobsScenario, RequestLoad, TaskTrace
from polymux.sim.jobs.simulation import simulate_jobs

__all__ = [
    "JobLoad", "JobOutcome", "JobsOutcome", "JobsScenario", "Program", "RequestLoad", "RequestsOutcome", "TaskTrace",
    "simulate_jobs",
]  # fmt: skip
