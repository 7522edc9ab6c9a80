"""A recording whose file takes no more ends, and the server goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from polymux.core.ids import DeviceId
from polymux.core.jobs.event import TasksDone
from polymux.sched.recording import JOBS, QUEUES, Format, Step
from polymux.server.recording import Recorder

STEP = Step(1, TasksDone(DeviceId("cpu:0")), ())


@pytest.mark.parametrize("format_", [QUEUES, JOBS])
def test_a_full_disk_ends_the_recording_and_is_told_once(
    format_: Format, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.jsonl"
    recorder = Recorder(path, format_, "policy")
    recorder.record(STEP)
    assert recorder._file is not None
    with open("/dev/full", "w", buffering=1) as full:
        good, recorder._file = recorder._file, full
        for _ in range(3):
            recorder.record(STEP)
        recorder.close()
    good.close()
    assert capfd.readouterr().out.count("ends here") == 1
    assert len(path.read_text().splitlines()) == 2
