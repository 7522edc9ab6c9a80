"""What a workload asks of a placement: rates, deadlines, and how unevenly requests come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from polymux.core.errors import InvalidRequest
from polymux.perfmodel.capacity.demand import POISSON, Demand, DeviceKind
from polymux.planning.workload_devices import DeviceGroup
from polymux.sim.serving.arrivals import SECOND_NS, ClosedLoop, Poisson, Uniform
from polymux.sim.serving.scenario import Load

_ENOUGH_WINDOWS = 20
_MEASURED_NS = 600 * SECOND_NS
_SEED = 20_260


def read_demands(loads: Sequence[Load]) -> list[Demand]:
    """Make a demand of each load.

    Raises
    ------
    InvalidRequest
        For a closed loop, whose rate depends on how fast it is answered.

    Notes
    -----
    The dispersion of bursts and traces is measured on up to ten minutes of them, in windows as long as the SLO.
    """
    return [_demand(load) for load in loads]


def _demand(load: Load) -> Demand:
    model, arrivals = load.model, load.arrivals
    if isinstance(arrivals, ClosedLoop):
        raise InvalidRequest(
            f"model {model.name}: a closed loop of {arrivals.clients} clients has no rate to plan for; give its"
            " arrivals as uniform, poisson, bursty, or a trace"
        )
    return Demand(
        model.name,
        arrivals.mean_rate_per_s,
        model.slo_ns,
        load.surfaces,
        load.items,
        load_dispersion(load),
        model.memory_nbytes,
    )


def load_dispersion(load: Load) -> float:
    """How unevenly requests come: variance over mean of their number in windows as long as the SLO."""
    arrivals = load.arrivals
    if isinstance(arrivals, Uniform):
        return 0.0
    if isinstance(arrivals, Poisson | ClosedLoop):
        return POISSON
    return measured_dispersion(
        arrivals.times_ns(np.random.default_rng(_SEED), _MEASURED_NS), load.model.slo_ns
    )


def measured_dispersion(times_ns: np.ndarray, window_ns: int) -> float:
    """Variance over mean of the number of arrivals in windows; that of Poisson arrivals when there are few windows."""
    if not len(times_ns):
        return POISSON
    windows = int(times_ns[-1] // window_ns)
    if windows < _ENOUGH_WINDOWS:
        return POISSON
    counts = np.bincount(times_ns[times_ns < windows * window_ns] // window_ns, minlength=windows)
    return float(counts.var() / counts.mean()) if counts.any() else POISSON


def device_kinds(groups: Sequence[DeviceGroup], limits: Mapping[str, int]) -> list[DeviceKind]:
    """Make a kind of each group of devices; how many the workload has does not count, only `limits` do.

    Raises
    ------
    InvalidRequest
        If a limit names another kind.
    """
    names = {group.kind for group in groups}
    for name in limits:
        if name not in names:
            raise InvalidRequest(
                f"limit: the workload has no devices of kind {name!r}; give one of {', '.join(names)}"
            )
    return [
        DeviceKind(
            group.kind, group.units, group.shares, group.memory_nbytes, limits.get(group.kind), group.cost
        )
        for group in {group.kind: group for group in groups}.values()
    ]
