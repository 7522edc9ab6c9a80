"""Threads that are in C++ while the interpreter ends: the process ends as it was told to."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import sys, threading, time
import polymux

client = polymux.connect(start=True)
queue = client.queue()
THREAD

class Slow:
    def __del__(self, sleep=time.sleep):
        sleep(0.3)  # the interpreter ends meanwhile, and lets other threads come back

sys.slow = Slow()
threading.Thread(target=wait, daemon=True).start()
time.sleep(0.1)
sys.exit(7)
"""
THREADS = {
    "a completion": """
def wait():
    while True:
        client.completion_wait(client.completion_value(), 5_000_000)
""",
    "a task": """
def wait():
    while True:
        queue.submit("noop").wait()
""",
}


@pytest.mark.parametrize("thread", THREADS.values(), ids=THREADS)
def test_a_daemon_thread_that_waits_does_not_abort_the_process(thread: str) -> None:
    script = SCRIPT.replace("THREAD", thread)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 7, done.stderr
    assert "terminate" not in done.stderr
