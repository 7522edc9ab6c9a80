"""What jobs have of a device is in accounts, metrics and timeline; and a runtime inside has jobs as well."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest

import polymux
from polymux.core.errors import InvalidRequest
from tests.segment.server_process import ServerProcess, until
from tests.segment.test_leases import HERE, job, sleep

KERNELS = str(HERE / "kernels_of_operator.py")


def test_a_job_is_in_the_accounts_the_metrics_and_the_timeline(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    options = ("--device", "cpu", "--kernels", KERNELS, "--trace", str(trace), "--metrics", "0")
    with ServerProcess(tmp_path, *options) as server:
        until(lambda: "metrics at " in server.log.read_text(), 60)
        url = server.log.read_text().partition("metrics at ")[2].split()[0]
        with job(server, tmp_path, "boundary,stop") as counting, server.connect() as client:
            sleep(client, 0.01).wait(30)
            until(lambda: _account(server)["job_ns"] > 10_000_000)
            before = _account(server)
            assert before["preemptions"] >= 1
            counting.expect_running()
            after = _account(server)
            assert after["job_ns"] > before["job_ns"], "also what it holds now"
            with urllib.request.urlopen(url, timeout=30) as reply:
                text = reply.read().decode()
        until(lambda: server.status()["jobs"] == [])
        assert _account(server)["job_ns"] >= after["job_ns"], "also of one that has ended"
    assert 'polymux_jobs{application="job",state="runs"} 1.0' in text
    assert 'polymux_preemption_wait_seconds_count{device="cpu:0"}' in text
    events = json.loads(trace.read_text())["traceEvents"]
    held = [event for event in events if event.get("cat") == "job"]
    assert {event["name"] for event in held} == {"counting"}
    assert {"stop", "over"} <= {event["args"]["ended"] for event in held}


def test_a_job_in_the_process_of_its_server_gives_way_by_itself_only() -> None:
    with polymux.connect(start=True, devices=["cpu"]) as client:
        with pytest.raises(InvalidRequest, match="let it give way at boundaries"):
            client.lease(levels=["stop"])
        with client.lease() as lease:
            assert lease.levels == ("step", "boundary")
            assert lease.step()
            queue = client.queue()
            task = queue.submit("noop", [], [])
            until(lambda: bool(lease.gate[0]) or task.done(), 30)
            lease.step()
            task.wait(30)


@pytest.mark.parametrize("policy", ["switchflow", "time_slicing", "unmanaged"])
def test_every_policy_lets_tasks_and_jobs_get_on(tmp_path: Path, policy: str) -> None:
    with ServerProcess(tmp_path, "--device", "cpu", "--kernels", KERNELS, "--jobs", policy) as server:
        with (
            job(server, tmp_path, "step,boundary", "steps") as first,
            job(server, tmp_path, "step,boundary", "steps"),
        ):
            with server.connect() as client:
                for _ in range(3):
                    sleep(client, 0.002).wait(60)
            first.expect_running()
            assert server.status()["server"]["job_policy"] == policy


def test_a_policy_that_is_none_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="nosuch.*switchflow"):
        ServerProcess(tmp_path, "--jobs", "nosuch").start()


def _account(server: ServerProcess) -> dict[str, int]:
    accounts = [row for row in server.status()["accounts"] if row["application"] == "job"]
    return accounts[0] if accounts else {"job_ns": 0, "preemptions": 0}
