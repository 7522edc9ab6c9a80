"""Writes the timeline: who ran where and when, what was copied, which queue moved and what that took.

One process for each device. Its tracks: one for each stream, with a slice for each task; copies into and out of its
memory; the times for which jobs held it; migrations to it, each from the moment the old stream let go of the queue to
the start of the first task here; and counters of memory and waiting tasks. Arrows lead from the last task on the old
stream through the migration and its copies to the first task on the new one.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from time import monotonic_ns

from polymux.core.ids import StreamId
from polymux.server.accelerator import Accelerator
from polymux.server.jobs.lease import Held
from polymux.server.kernels import RESERVED
from polymux.server.session import TaskQueue
from polymux.server.trace_file import Lanes, Span, TraceFile, Track
from polymux.server.trace_moves import Copied, Move, Moves, Ran
from polymux.server.transfer import Transfer

DRAIN_S = 0.2
COPIES_OUT, COPIES_IN, MIGRATIONS, JOBS = 1000, 2000, 3000, 4000
"""Numbers of a device's tracks, from which on those of one kind follow each other."""
MAX_ARROWS = 16
"""Copies of one migration through which its arrows lead."""

KernelName = Callable[[str, int], str]
Gauges = Callable[[], Mapping[str, Mapping[str, int]]]


class Tracer:
    """Collects what happened and writes it, with a thread of its own.

    Parameters
    ----------
    path : Path
    accelerators : sequence of Accelerator
    kernel_name : callable
        Gives a kernel's name for a queue's id and a kernel's number.
    gauges : callable
        Gives for each device the numbers that are shown as counters, by name.

    Raises
    ------
    ConfigError
        If the file cannot be written.
    """

    def __init__(
        self, path: Path, accelerators: Sequence[Accelerator], kernel_name: KernelName, gauges: Gauges
    ) -> None:
        self._accelerators = accelerators
        self._kernel_name = kernel_name
        self._gauges = gauges
        self._shown: dict[tuple[str, str], int] = {}
        self._file = TraceFile(path)
        devices = list(dict.fromkeys(accelerator.device.id for accelerator in accelerators))
        self._process: dict[str, int] = {device: number for number, device in enumerate(devices, start=1)}
        self._lanes: dict[tuple[str, int], Lanes] = {}
        self._track_of: dict[str, Track] = {}
        self._ended_ns: dict[str, int] = {}
        self._missing: dict[str, int] = {}
        self._name_tracks()
        self._lock = threading.Lock()
        self._transfers: list[Transfer] = []
        self._new_moves: list[Move] = []
        self._held: list[Held] = []
        self._moves = Moves()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="polymux-trace", daemon=True)

    # ---- from any thread ----

    def start(self) -> None:
        """Start writing."""
        self._thread.start()

    def copied(self, transfer: Transfer) -> None:
        """Note a copy."""
        with self._lock:
            self._transfers.append(transfer)

    def moved(self, queue: TaskQueue, old: StreamId, new: StreamId, left_ns: int) -> None:
        """Note that a queue is bound to another device from now on, and when the old stream let go of it."""
        move = Move(queue.id, queue.name, old, new, left_ns, monotonic_ns())
        with self._lock:
            self._new_moves.append(move)

    def held(self, held: Held) -> None:
        """Note that a job has held a device."""
        with self._lock:
            self._held.append(held)

    def close(self) -> None:
        """Write what is left and finish the file."""
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._drain()
        self._write_moves(self._moves.end())
        self._file.close()
        if missing := sum(self._missing.values()):
            print(
                f"polymux: {missing} tasks are not in the timeline: they came faster than it is written; the counters"
                ' "tasks not shown" say where',
                file=sys.stderr,
            )

    # ---- in the thread ----

    def _run(self) -> None:
        self._write_gauges()
        while not self._ending.wait(DRAIN_S):
            self._drain()
            self._write_gauges()

    def _drain(self) -> None:
        with self._lock:  # before the tasks: those on the old stream have ended by now
            moves, self._new_moves = self._new_moves, []
        self._moves.begin(moves)
        ran = self._write_tasks()
        self._write_missing()
        with self._lock:  # after the tasks: what they needed has been copied by now
            transfers, self._transfers = self._transfers, []
            held, self._held = self._held, []
        self._moves.copied(self._write_copies(transfers))
        self._write_held(held)
        self._write_moves(self._moves.ran(ran))

    def _write_tasks(self) -> dict[str, list[Ran]]:
        ran: dict[str, list[Ran]] = {}
        for accelerator in self._accelerators:
            stream = accelerator.spec.id
            for (
                queue,
                kernel_id,
                sequence,
                submitted_ns,
                start_ns,
                end_ns,
            ) in accelerator.worker.drain_trace():
                # a later task's times are told by a clock whose rate is known better: it may seem to start too early
                begin_ns = max(start_ns, self._ended_ns.get(stream, 0))
                span = Span(self._track_of[stream], begin_ns, max(end_ns, begin_ns + 1))
                self._ended_ns[stream] = span.end_ns
                name = RESERVED.get(kernel_id) or self._kernel_name(queue, kernel_id)
                waiting_us = max(0, begin_ns - submitted_ns) / 1e3
                args = {"queue": queue, "task": sequence, "waiting_us": waiting_us}
                self._file.slice(span, name, "task", args)
                ran.setdefault(queue, []).append(Ran(stream, span))
        return ran

    def _write_missing(self) -> None:
        """Say how many tasks of each stream were too many to be kept."""
        for accelerator in self._accelerators:
            stream, missing = accelerator.spec.id, accelerator.worker.trace_dropped
            if missing != self._missing.get(stream, 0):
                self._missing[stream] = missing
                name = f"tasks not shown of {stream}"
                self._file.counter(
                    self._process[accelerator.device.id], monotonic_ns(), name, "tasks", missing
                )

    def _write_copies(self, transfers: list[Transfer]) -> list[Copied]:
        transfers.sort(key=lambda transfer: transfer.start_ns)
        copies = []
        for transfer in transfers:
            if transfer.device not in self._process:
                continue
            lanes = self._lanes[transfer.device, COPIES_IN if transfer.into else COPIES_OUT]
            span = lanes.place(transfer.start_ns, transfer.end_ns)
            name = f"copy from {transfer.source_name}" if transfer.into else f"copy to {transfer.target_name}"
            args = {"nbytes": transfer.nbytes, "queue": transfer.queue, "owner": transfer.owner}
            self._file.slice(span, name, "transfer", args)
            copies.append(Copied(transfer, span))
        return copies

    def _write_held(self, times: Iterable[Held]) -> None:
        for held in sorted(times, key=lambda held: held.start_ns):
            spec = held.lease.spec
            args = {"job": spec.id, "priority": spec.priority, "weight": spec.weight, "ended": held.how}
            span = self._lanes[held.device, JOBS].place(held.start_ns, held.end_ns)
            self._file.slice(span, spec.name, "job", args)

    def _write_moves(self, moves: Iterable[Move]) -> None:
        for move in sorted(moves, key=lambda move: move.start_ns):
            self._write_move(move)

    def _write_move(self, move: Move) -> None:
        lanes = self._lanes[move.new.rpartition("/")[0], MIGRATIONS]
        span = lanes.place(move.start_ns, move.ended_ns)
        args = {
            "queue": move.queue,
            "name": move.name,
            "from": move.old,
            "to": move.new,
            "nbytes": move.nbytes,
            "nbytes_ahead": sum(copied.transfer.nbytes for copied in move.ahead),
            "copies": len(move.ahead) + len(move.after),
        }
        self._file.slice(span, f"{move.name} moves from {move.old} to {move.new}", "migration", args)
        before = [] if move.last is None else [(move.last.track, move.last.end_ns - 1)]
        self._flow([*before, (span.track, span.start_ns)], move.after, move.first)
        if move.ahead:
            copies = [(copied.span.track, copied.span.start_ns) for copied in move.ahead[:MAX_ARROWS]]
            self._flow([*copies, (span.track, span.start_ns)], [], None)

    def _flow(self, points: list[tuple[Track, int]], copies: Sequence[Copied], first: Span | None) -> None:
        """Write the arrows through some points, copies and a task; what does not come after the last is left out."""
        for span in (*(copied.span for copied in copies[:MAX_ARROWS]), *([] if first is None else [first])):
            at_ns = max(points[-1][1], span.start_ns)
            if at_ns < span.end_ns:
                points.append((span.track, at_ns))
        if len(points) > 1:
            self._file.flow(points)

    def _write_gauges(self) -> None:
        now_ns = monotonic_ns()
        for device, values in self._gauges().items():
            for name, value in values.items():
                if self._shown.get((device, name)) != value:
                    self._shown[device, name] = value
                    unit = "bytes" if "memory" in name else "tasks"
                    self._file.counter(self._process[device], now_ns, name, unit, value)

    def _name_tracks(self) -> None:
        for device, process in self._process.items():
            self._file.name_process(process, device)
            for first, name in (
                (COPIES_OUT, "copies out"),
                (COPIES_IN, "copies in"),
                (MIGRATIONS, "migrations"),
                (JOBS, "jobs"),
            ):
                self._lanes[device, first] = Lanes(self._file, Track(process, first), name)
        for accelerator in self._accelerators:
            stream = accelerator.spec.id
            number = 1 + int(stream.rpartition("/")[2])
            track = self._track_of[stream] = Track(self._process[accelerator.device.id], number)
            self._file.name_track(track, f"stream {stream}")
