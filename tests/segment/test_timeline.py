"""The timeline of queues that move under load: tracks, slices and arrows as Perfetto needs them."""

from __future__ import annotations

import importlib.util
import random
from pathlib import Path

import numpy as np
import pytest

from tests.segment.server_process import ServerProcess
from tests.segment.timeline import Timeline

KERNELS = Path(__file__).with_name("kernels_of_operator.py")
MOVES = 60
NBYTES = 50 * 4096


@pytest.fixture(scope="module")
def timeline(tmp_path_factory: pytest.TempPathFactory) -> Timeline:
    folder = tmp_path_factory.mktemp("server")
    devices = ["cpu", "cpu:0", "cpu:1,streams=2"]
    if importlib.util.find_spec("pyopencl") is not None:
        devices.append("opencl:0")
    words = [word for device in devices for word in ("--device", device)]
    words += ["--kernels", str(KERNELS), "--trace", str(folder / "trace.json")]
    with ServerProcess(folder, *words) as server, server.connect("heat") as client:
        rng = random.Random(3)
        queues = [client.queue(f"queue {number}") for number in range(3)]
        arrays = [queue.array(np.zeros(NBYTES // 4, "f4")) for queue in queues]
        for _ in range(MOVES):
            at = rng.randrange(len(queues))
            for _ in range(rng.randrange(6)):
                queues[at].submit("saxpy", [arrays[at], arrays[at]], [arrays[at]], a=1.0)
            client.request("migrate", {"queue": queues[at].id, "device": rng.choice(client.devices[:3])})
        for queue in queues:
            queue.synchronize(60)
    return Timeline(folder / "trace.json")


def test_no_slices_of_a_track_overlap_and_every_arrow_begins_and_ends_in_slices_of_the_right_tracks(
    timeline: Timeline,
) -> None:
    timeline.check()


def test_every_device_has_its_streams_and_what_happened_has_its_tracks(timeline: Timeline) -> None:
    names = {timeline.devices[process]: set() for process, _ in timeline.tracks}  # type: ignore[var-annotated]
    for (process, _), name in timeline.tracks.items():
        names[timeline.devices[process]].add(name)
    assert {"stream cpu:2/0", "stream cpu:2/1", "copies in", "migrations"} <= names["cpu:2"]
    assert "copies in" not in names["cpu:0"], "it works on the memory of the applications"


def test_migrations_lead_from_the_last_task_over_the_copies_to_the_first_task(timeline: Timeline) -> None:
    paths = [[timeline.under(point) for point in points] for points in timeline.flows.values()]
    kinds = [[event["cat"] for event in path] for path in paths]
    whole = [path for path in kinds if path[0] == "task" and path[-1] == "task"]
    assert len(whole) > MOVES // 6
    assert any("transfer" in path for path in kinds)
    moves = timeline.of("migration")
    assert len(moves) > MOVES // 3
    assert any(event["args"]["nbytes"] == NBYTES for event in moves)
    assert all(event["args"]["nbytes"] % NBYTES == 0 for event in moves)
    assert all(event["args"]["from"] != event["args"]["to"] for event in moves)


def test_tasks_say_how_long_they_waited_and_devices_how_much_they_have(timeline: Timeline) -> None:
    assert all(event["args"]["waiting_us"] >= 0 for event in timeline.of("task"))
    counters = {(timeline.devices[e["pid"]], e["name"]) for e in timeline.events if e["ph"] == "C"}
    assert {("cpu:0", "waiting tasks"), ("cpu:1", "memory used")} <= counters
    assert ("cpu:0", "memory used") not in counters
