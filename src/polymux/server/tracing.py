"""Writes the timeline: who ran where and when, in the Chrome trace format, which opens in Perfetto.

One process per device, one thread per stream and one for copies of that device's memory; a task is a slice, a
migration an arrow from the stream that a queue left to the one that it came to.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic_ns
from typing import Any, TextIO

from polymux.core.errors import ConfigError
from polymux.core.ids import StreamId
from polymux.server.accelerator import Accelerator
from polymux.server.kernels import RESERVED
from polymux.server.session import TaskQueue
from polymux.server.transfer import Transfer

DRAIN_S = 0.2

KernelName = Callable[[str, int], str]


class Tracer:
    """Collects slices from the workers and writes them.

    Parameters
    ----------
    path : Path
    accelerators : sequence of Accelerator
    kernel_name : callable
        Gives a kernel's name for a queue's id and a kernel's number.

    Raises
    ------
    ConfigError
        If the file cannot be written.
    """

    def __init__(self, path: Path, accelerators: Sequence[Accelerator], kernel_name: KernelName) -> None:
        self._accelerators = accelerators
        self._kernel_name = kernel_name
        self._lock = threading.Lock()
        self._flows = 0
        try:
            self._file: TextIO = open(path, "w")  # noqa: SIM115, closed by close()
        except OSError as error:
            raise ConfigError(str(path), "trace", str(path), f"cannot be written: {error}") from None
        self._file.write('{"displayTimeUnit":"ns","traceEvents":[\n')
        devices = list(dict.fromkeys(accelerator.device.id for accelerator in accelerators))
        self._process = {device: number for number, device in enumerate(devices, start=1)}
        self._thread_of = {
            accelerator.spec.id: (
                self._process[accelerator.device.id],
                1 + int(accelerator.spec.id.rpartition("/")[2]),
            )
            for accelerator in accelerators
        }
        self._write_names()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="polymux-trace", daemon=True)

    def start(self) -> None:
        """Start writing."""
        self._thread.start()

    def copied(self, transfer: Transfer) -> None:
        """Note a copy, from the thread that made it."""
        process = self._process.get(transfer.device)  # type: ignore[call-overload]
        if process is None:
            return
        direction = "in" if transfer.into else "out"
        self._write(
            {
                "ph": "X",
                "name": f"copy {direction}",
                "cat": "transfer",
                "pid": process,
                "tid": 1000 + int(transfer.into),
                "ts": transfer.start_ns / 1e3,
                "dur": (transfer.end_ns - transfer.start_ns) / 1e3,
                "args": {"nbytes": transfer.nbytes, "queue": transfer.queue, "owner": transfer.owner},
            }
        )

    def moved(self, queue: TaskQueue, old: StreamId, new: StreamId) -> None:
        """Note that a queue is bound to another device from now on."""
        now_us = monotonic_ns() / 1e3
        self._flows += 1
        name = f"{queue.name} moves from {old} to {new}"
        for phase, stream in (("s", old), ("f", new)):
            process, thread = self._thread_of[stream]
            at = {"pid": process, "tid": thread, "ts": now_us}
            self._write({"ph": "X", "name": name, "cat": "migration", "dur": 1.0, **at})
            flow: dict[str, Any] = {
                "ph": phase,
                "name": "migration",
                "cat": "migration",
                "id": self._flows,
                **at,
            }
            self._write(flow | ({"bp": "e"} if phase == "f" else {}))

    def close(self) -> None:
        """Write what is left and finish the file."""
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._drain()
        with self._lock:
            self._file.write(json.dumps({"ph": "M", "name": "trace_end", "pid": 0, "tid": 0}) + "\n]}\n")
            self._file.close()

    def _run(self) -> None:
        while not self._ending.wait(DRAIN_S):
            self._drain()

    def _drain(self) -> None:
        for accelerator in self._accelerators:
            process, thread = self._thread_of[accelerator.spec.id]
            for queue, kernel_id, sequence, _, start_ns, end_ns in accelerator.worker.drain_trace():
                self._write(
                    {
                        "ph": "X",
                        "name": RESERVED.get(kernel_id) or self._kernel_name(queue, kernel_id),
                        "cat": "task",
                        "pid": process,
                        "tid": thread,
                        "ts": start_ns / 1e3,
                        "dur": (end_ns - start_ns) / 1e3,
                        "args": {"queue": queue, "task": sequence},
                    }
                )

    def _write_names(self) -> None:
        for device, process in self._process.items():
            self._name("process_name", process, 0, device)
            self._name("thread_name", process, 1000, "copies out")
            self._name("thread_name", process, 1001, "copies in")
        for stream, (process, thread) in self._thread_of.items():
            self._name("thread_name", process, thread, f"stream {stream}")

    def _name(self, what: str, process: int, thread: int, name: str) -> None:
        self._write({"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}})

    def _write(self, event: dict[str, Any]) -> None:
        with self._lock:
            if not self._file.closed:
                self._file.write(json.dumps(event) + ",\n")
