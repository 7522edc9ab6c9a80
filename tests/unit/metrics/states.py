"""A status as a server tells it, with two applications on two devices."""

from __future__ import annotations

from typing import Any


def account(application: str, device: str, **numbers: int) -> dict[str, Any]:
    keys = (
        "tasks",
        "failed",
        "busy_ns",
        "waiting_ns",
        "copied_in_nbytes",
        "copied_out_nbytes",
        "copied_between_nbytes",
        "migrations",
        "job_ns",
        "preemptions",
    )
    return {"application": application, "device": device, **dict.fromkeys(keys, 0), **numbers}


def device(name: str, **changes: Any) -> dict[str, Any]:
    standard = {
        "id": name,
        "api": name.partition(":")[0],
        "name": "A device",
        "memory": "own",
        "memory_nbytes": 1 << 30,
        "used_nbytes": 1 << 20,
        "units": 4,
        "lost": None,
        "task_waits": {"count": 4, "total_ns": 2_000_000},
        "jobs_memory": {"used_nbytes": 4096, "most_nbytes": 8192},
        "streams": [
            {
                "id": f"{name}/0",
                "units": None,
                "tasks": 7,
                "busy_ns": 500_000_000,
                "queues": {},
            }
        ],
    }
    return standard | changes


def state() -> dict[str, Any]:
    return {
        "server": {
            "version": "0.1.0",
            "pid": 7,
            "socket": "/run/p.sock",
            "policy": "round_robin",
            "uptime_ns": 10_000_000_000,
            "now_ns": 50_000_000_000,
        },
        "devices": [
            device("cpu:0", memory="host", memory_nbytes=0, used_nbytes=0),
            device("opencl:0", lost="off"),
        ],
        "energy": [
            {"name": "package-0", "joules": 12.5, "problem": None},
            {"name": "dram-0", "joules": None, "problem": "it is for root alone"},
        ],
        "accounts": [
            account("heat", "cpu:0", tasks=100, failed=1, busy_ns=2_000_000_000, waiting_ns=500_000_000),
            account(
                "heat",
                "opencl:0",
                tasks=50,
                copied_in_nbytes=4096,
                copied_out_nbytes=100,
                migrations=3,
                job_ns=7_000_000_000,
                preemptions=9,
            ),
            account("other", "cpu:0", tasks=1, copied_between_nbytes=10),
        ],
        "applications": [
            {"session": 3, "name": "heat[1]", "account": "heat", "device_nbytes": 10},
            {"session": 4, "name": "heat[2]", "account": "heat", "device_nbytes": 20},
        ],
        "queues": [
            {"id": "3.0", "session": 3, "device": "opencl:0", "pending": 5},
            {"id": "3.1", "session": 3, "device": "opencl:0", "pending": 2},
            {"id": "4.0", "session": 4, "device": None, "pending": 1},
        ],
        "jobs": [
            {"id": "job1", "session": 3, "state": "runs"},
            {"id": "job2", "session": 4, "state": "waits"},
            {"id": "job3", "session": 4, "state": "waits"},
        ],
    }
