"""A server that was recorded while clients came, went, moved and died gives the same decisions in a replay."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
from pathlib import Path

import pytest

from polymux.core.errors import InvalidRequest
from polymux.policy import registry
from polymux.sched.replay import replay
from tests.segment.server_process import ServerProcess, until
from tests.segment.timeline import Timeline

KERNELS = Path(__file__).parents[1] / "segment" / "kernels_of_operator.py"
APPLICATION = Path(__file__).parents[1] / "segment" / "application.py"
DEVICES = ("cpu:0", "cpu:1", "cpu:2")


def live(server: ServerProcess) -> None:
    """Let applications open, use, move and close queues, and kill some."""
    rng = random.Random(7)
    for _ in range(3):
        killed = subprocess.Popen(
            [sys.executable, str(APPLICATION), str(server.socket), "waiting"], stdout=subprocess.PIPE
        )
        assert killed.stdout is not None
        killed.stdout.readline()
        with server.connect("a") as client:
            queues = [
                client.queue(priority=number, device=rng.choice([None, "cpu:1"])) for number in range(6)
            ]
            buffers = [queue.zeros(100, "f8") for queue in queues]
            for _ in range(30):
                at = rng.randrange(len(queues))
                queues[at].submit("double", [buffers[at]], [buffers[at]])
                if rng.random() < 0.3:
                    with contextlib.suppress(InvalidRequest):  # it is pinned: that is recorded as well
                        client.request("migrate", {"queue": queues[at].id, "device": rng.choice(DEVICES)})
            queues.pop().close()
            for queue in queues:
                queue.synchronize(30)
        killed.kill()
        killed.wait()
        killed.stdout.close()
    until(lambda: not server.status()["applications"])


@pytest.mark.parametrize("policy", registry.POLICIES)
def test_a_recorded_server_is_replayed_to_the_same_decisions(tmp_path: Path, policy: str) -> None:
    recording, timeline = tmp_path / "run.jsonl", tmp_path / "trace.json"
    words = [word for device in ("cpu", "cpu:0", "cpu:1,streams=2") for word in ("--device", device)]
    words += ["--policy", policy, "--record", str(recording), "--trace", str(timeline)]
    with ServerProcess(tmp_path, *words, "--kernels", str(KERNELS)) as server:
        live(server)
    with recording.open() as lines:
        result = replay(lines)
    assert (result.policy, result.difference, result.truncated) == (policy, None, False)
    assert result.steps > 100
    check_timeline(Timeline(timeline))


def test_a_recording_of_a_killed_server_is_replayed_as_far_as_it_goes(tmp_path: Path) -> None:
    recording = tmp_path / "run.jsonl"
    server = ServerProcess(tmp_path, "--device", "cpu", "--record", str(recording))
    server.start()
    with server.connect() as client:
        for _ in range(5):
            client.queue()
        server.kill()
    with recording.open() as lines:
        result = replay(lines)
    assert result.difference is None
    assert result.steps >= 10


def test_a_changed_recording_is_found_out_by_the_command(tmp_path: Path) -> None:
    recording = tmp_path / "run.jsonl"
    with ServerProcess(tmp_path, "--device", "cpu", "--record", str(recording)) as server:
        with server.connect() as client:
            client.queue()

    def command(file: Path) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "polymux.cli", "replay", str(file)]
        return subprocess.run(words, capture_output=True, text=True, check=False)

    same = command(recording)
    assert (same.returncode, same.stderr) == (0, "")
    assert "all decided as recorded" in same.stdout
    recording.write_text(recording.read_text().replace('"cpu:0/0"', '"cpu:0/1"', 3))
    other = command(recording)
    assert other.returncode == 1
    assert "Traceback" not in other.stderr
    for nonsense in (tmp_path / "missing.jsonl", KERNELS):
        failed = command(nonsense)
        assert failed.returncode == 1
        assert failed.stderr.startswith("polymux replay: ")


def check_timeline(timeline: Timeline) -> None:
    """Check that every kind of event is there and in its place."""
    timeline.check()
    assert sorted(timeline.devices.values()) == list(DEVICES)
    assert {event["ph"] for event in timeline.events} >= set("MXsfC")
    assert "double" in {event["name"] for event in timeline.of("task")}
    assert "copy from host" in {event["name"] for event in timeline.of("transfer")}
    assert timeline.of("migration")
    assert timeline.flows
