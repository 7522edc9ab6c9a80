"""Served models in virtual time: the engine of requests and its policies, driven by a model of arrivals and devices.

`arrivals` says when requests come, `scenario` what is simulated, `simulation` plays it out, `batch_time` knows how long
a batch takes, `host` what the front end and its clients take from it, `outcome` says what came of it, `cluster` splits
it over pools behind a router. The same scenario and
seed give the same outcome, to the nanosecond.
"""

from polymux.sim.serving.arrivals import Arrivals, Bursty, ClosedLoop, Counts, Poisson, Timestamps, Uniform
from polymux.sim.serving.cluster import Pool, simulate_cluster
from polymux.sim.serving.host import Host, HostWork
from polymux.sim.serving.outcome import BatchSpan, DeviceOutcome, ModelOutcome, ServingOutcome
from polymux.sim.serving.scenario import Load, Scenario, Slowdown
from polymux.sim.serving.simulation import Progress, Record, simulate

__all__ = [
    "Arrivals", "BatchSpan", "Bursty", "ClosedLoop", "Counts", "DeviceOutcome", "Host", "HostWork", "Load",
    "ModelOutcome", "Poisson", "Pool", "Progress", "Record", "Scenario", "ServingOutcome", "Slowdown", "Timestamps",
    "Uniform", "simulate", "simulate_cluster",
]  # fmt: skip
