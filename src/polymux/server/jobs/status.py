"""What the server tells about its jobs, as data for JSON."""

from __future__ import annotations

from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from polymux.server.jobs.lease import Lease
from polymux.server.jobs.process_memory import resident_nbytes

if TYPE_CHECKING:
    from polymux.server.parts import Parts


def job_rows(parts: Parts) -> list[dict[str, Any]]:
    """Describe the jobs, in the order in which they came."""
    now = monotonic_ns()
    return [_described(lease, now) for lease in parts.jobs.leases()]


def _described(lease: Lease, now: int) -> dict[str, Any]:
    spec = lease.spec
    pid = lease.session.peer.pid if lease.process is None else lease.process.pid
    now_nbytes, most_nbytes = resident_nbytes(pid)
    return {
        "id": spec.id,
        "name": spec.name,
        "session": lease.session.id,
        "application": lease.session.name,
        "pid": pid,
        "state": lease.state,
        "device": lease.device if lease.holds else None,
        "devices": list(spec.devices),
        "priority": spec.priority,
        "weight": spec.weight,
        "levels": [level.name.lower() for level in spec.levels],
        "background": None if lease.process is None else lease.process.in_background or None,
        "memory_nbytes": spec.memory_nbytes,
        "peak_nbytes": spec.needed_nbytes,
        "resident_nbytes": now_nbytes,
        "most_resident_nbytes": most_nbytes,
        **lease.figures.described(),
        "held_ns": lease.held_ns(now),
        "waited_ns": lease.waited_ns(now),
    }
