"""A burst of connections, each with one request, at a front end of its own: what becomes of all of them.

``python -m benchmarks.many_connections [--connections 100000] [--policy spacetime] [--max-connections N]``, from the
root of a checkout. Every connection has to be answered, or refused with 503 and ``Retry-After``; else the exit status
is 1. Clients are as many processes as their descriptors demand (`ulimit -n`), all on this machine, so that the times
are those of clients and front end together.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
from pathlib import Path

from tests.serving import repository
from tests.serving.burst import burst
from tests.serving.front_end import FrontEnd, serving
from tests.serving.test_burst import request

_OTHER_DESCRIPTORS = 64
_MOST = 50_000
"""Connections of one process."""


def counts(connections: int) -> list[int]:
    """Divide connections among processes, as their descriptors and ports allow."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # the processes inherit it
    most = min(_MOST, hard - _OTHER_DESCRIPTORS) if hard != resource.RLIM_INFINITY else _MOST
    processes = -(-connections // most)
    return [connections // processes + (index < connections % processes) for index in range(processes)]


def memory_nbytes(front: FrontEnd) -> dict[str, int]:
    """Resident memory of the front end: now, and at most so far."""
    lines = Path(f"/proc/{front.process.pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return {name: int(fields[key].split()[0]) * 1024 for name, key in (("now", "VmRSS"), ("most", "VmHWM"))}


def main() -> int:
    """Run it and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--connections", type=int, default=100_000)
    parser.add_argument(
        "--policy", help="schedule the requests by a policy (default: each model has a queue)"
    )
    parser.add_argument("--max-connections", type=int, help="as of `polymux serve`")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    options = [] if args.policy is None else ["--policy", args.policy]
    if args.max_connections is not None:
        options += ["--max-connections", str(args.max_connections)]
    with tempfile.TemporaryDirectory(prefix="polymux-") as folder:
        repository.add(Path(folder), "id", repository.identity("FP32"))
        with serving(Path(folder), *options) as front:
            front.wait_until_loaded()
            before = memory_nbytes(front)["now"]
            outcome = burst(front.url, request(), counts(args.connections))
            after = memory_nbytes(front)
            is_serving = front.get("/v2/models/id/infer", request().partition(b"\r\n\r\n")[2])[0] == 200
    found = {
        "connections": args.connections,
        "answers": outcome.statuses,
        "with_retry_after": outcome.retry_after,
        "failures": outcome.failures,
        "seconds": round(outcome.slowest_s, 1),
        "memory_before_nbytes": before,
        "memory_most_nbytes": after["most"],
        "serves_afterwards": is_serving,
    }
    if args.json:
        print(json.dumps(found))
    else:
        print("\n".join(f"{name}: {value}" for name, value in found.items()))
    is_right = sum(outcome.statuses.values()) == args.connections and set(outcome.statuses) <= {200, 503}
    is_right = is_right and outcome.retry_after >= outcome.statuses.get(503, 0)
    return 0 if is_right and is_serving else 1


if __name__ == "__main__":
    sys.exit(main())
