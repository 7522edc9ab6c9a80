"""``polymux demo`` as a user runs it: it ends well, tells what goes wrong, and leaves no process behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MARK = "POLYMUX_DEMO_TEST"


class Demo:
    """A run of the demo, found again in all processes that it starts by a mark in their environment."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.out = folder / "out"
        self.mark = f"{MARK}={uuid.uuid4()}"
        name, _, value = self.mark.partition("=")
        command = [
            sys.executable,
            "-m",
            "polymux.cli",
            "demo",
            "--seconds",
            "5",
            "--out",
            str(self.out),
            *words,
        ]
        environment = os.environ | {name: value, "TMPDIR": str(folder)}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        )

    def end(self) -> tuple[int, str]:
        """Wait for its end; exit code, and all that it printed."""
        output, _ = self.process.communicate(timeout=240)
        return self.process.returncode, output

    def processes(self) -> dict[int, str]:
        """Return the command lines of the processes that it has started and that still run."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                environment = (folder / "environ").read_bytes()
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if self.mark.encode() in environment.split(b"\0") and int(folder.name) != self.process.pid:
                found[int(folder.name)] = b" ".join(words).decode()
        return found

    def wait_until_loaded(self) -> None:
        """Wait until the numerical application and the front end run, so that the load is near or there."""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and self.process.poll() is None:
            running = self.processes().values()
            if (
                any(" serve " in words for words in running)
                and sum("spawn_main" in words for words in running) >= 4
            ):
                return
            time.sleep(0.1)
        raise AssertionError(f"the demo did not come that far: {self.end()}")

    def assert_all_gone(self) -> None:
        """Nothing that it has started runs on, and its working folder is gone."""
        deadline = time.monotonic() + 10
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert self.processes() == {}
        assert list(self.out.parent.glob("polymux-demo-*")) == []


@pytest.fixture
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    runs: list[Demo] = []

    def begin(*words: str) -> Demo:
        runs.append(Demo(tmp_path_factory.mktemp("d"), *words))
        return runs[-1]

    yield begin
    for run in runs:
        run.process.kill()
        run.process.wait()
        for pid in run.processes():
            os.kill(pid, signal.SIGKILL)


def test_the_demo_ends_well_and_leaves_a_trace_a_picture_and_a_page(start) -> None:
    demo = start()
    code, output = demo.end()
    assert code == 0, output
    assert "Nothing lost" in output
    assert "every bit the same" in output
    events = json.loads((demo.out / "trace.json").read_text())["traceEvents"]
    kernels = {event["name"] for event in events if event.get("cat") == "task"}
    assert {"stencil", "detect_text/1", "read_text/1", "name_file_type/1", "hear_speech/1"} <= kernels
    assert Image.open(demo.out / "timeline.png").size == (1400, 900)
    assert "Nothing lost" in (demo.out / "demo.html").read_text()
    demo.assert_all_gone()


def test_on_one_device_the_demo_ends_well_and_says_that_nothing_could_be_migrated(start) -> None:
    demo = start("--device", "cpu")
    code, output = demo.end()
    assert code == 0, output
    assert "none: cpu:0 is the only device here that has its kernel" in output
    demo.assert_all_gone()


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name
)
def test_an_interrupted_demo_ends_everything_that_it_has_started(start, number: signal.Signals) -> None:
    demo = start()
    demo.wait_until_loaded()
    demo.process.send_signal(number)
    code, output = demo.end()
    assert code == 130, output
    assert "Traceback" not in output
    demo.assert_all_gone()


@pytest.mark.parametrize(
    ("word", "told"),
    [
        (" up ", "`polymux up` ended with exit code -9"),
        (" serve ", "`polymux serve` ended with exit code -9"),
    ],
)
def test_a_child_that_dies_is_named_and_everything_else_ends(start, word: str, told: str) -> None:
    demo = start()
    demo.wait_until_loaded()
    (pid,) = [pid for pid, words in demo.processes().items() if word in words]
    os.kill(pid, signal.SIGKILL)
    code, output = demo.end()
    assert code == 1, output
    assert told in output, output
    assert "Traceback" not in output
    demo.assert_all_gone()


def test_a_device_that_is_not_there_is_told_with_the_servers_own_words(start) -> None:
    demo = start("--device", "opencl:77")
    code, output = demo.end()
    assert code == 1
    assert "`polymux up` ended with exit code 1; its last lines" in output
    assert "opencl:77" in output
    demo.assert_all_gone()
