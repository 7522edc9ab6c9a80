"""Carries out a plan: keeps every unit supplied with pieces, and gives those of a unit that fails to others."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from polymux.client import Client, Queue
from polymux.coexec.call import Call, Piece
from polymux.coexec.caller import kept_off
from polymux.coexec.units import Unit
from polymux.core.errors import (
    BadArgument,
    BadBuffer,
    DeviceUnavailable,
    InvalidTask,
    PolymuxError,
    ServerGone,
    TaskFailed,
)
from polymux.perfmodel.coexec.adapt import LEAD_S, Chunk
from polymux.sched.coexec.dispatcher import Dispatcher
from polymux.segment import now_ns

_libc = ctypes.CDLL(None)

LEAD_NS = round(LEAD_S * 1e9)
"""A unit gets its next piece so long before it is predicted to end the one that it is at."""
_ALIVE_CHECK_NS = 200_000_000
_SHORTEST_NS = 20_000
_LATER = 1.25
"""An idle unit is asked again when a piece has taken so many times longer than predicted, and then each time again."""
_SOONEST_NS = 4_000_000
_SILENT_NS, _FIRST_SILENT_NS, _SILENT = 10_000_000_000, 60_000_000_000, 50
"""A device is given up that has not answered for so long, and so many times longer than predicted; its first piece of a
run may have to wait for its turn, or for its program to be built."""
CALLERS_FAULT = (BadArgument, BadBuffer, InvalidTask)
"""What would fail on every device."""


@dataclass(frozen=True, slots=True)
class Ran:
    """A piece that was computed.

    Parameters
    ----------
    unit : Unit
    chunk : Chunk
    seconds : float
        From its start, or from the end of the unit's piece before, to its end, as seen from the application.
    expected_s : float
        As predicted.
    """

    unit: Unit
    chunk: Chunk
    seconds: float
    expected_s: float


@dataclass(frozen=True, slots=True)
class _UnderWay:
    chunk: Chunk
    piece: Piece
    taken_ns: int
    expected_ns: int


@dataclass(slots=True)
class _Lane:
    unit: Unit
    queue: Queue
    under_way: deque[_UnderWay] = field(default_factory=deque)
    free_ns: int = 0
    asked: bool = False
    """Whether there was nothing for it since something ended last."""
    failed: bool = False

    @property
    def due_ns(self) -> int:
        """When it is to get its next piece."""
        its = self.under_way[0]
        return max(its.taken_ns, self.free_ns) + its.expected_ns - LEAD_NS

    def late_ns(self, now: int) -> int:
        """When, from now on, it is worth a look how late it is."""
        its = self.under_way[0]
        start_ns = max(its.taken_ns, self.free_ns)
        return start_ns + int(_LATER * max(its.expected_ns, now - start_ns, _SOONEST_NS))

    @property
    def given_up_ns(self) -> int:
        """When it has not answered for too long."""
        its = self.under_way[0]
        least_ns = _SILENT_NS if self.free_ns else _FIRST_SILENT_NS
        return max(its.taken_ns, self.free_ns) + max(least_ns, _SILENT * its.expected_ns)

    def wants(self, now: int) -> bool:
        """Tell whether it is to get a piece now."""
        if not self.under_way:
            return not self.asked
        return len(self.under_way) == 1 and not self.asked and now >= self.due_ns


class Run:
    """One run of a plan.

    Parameters
    ----------
    client : Client
    call : Call
    lanes : sequence of (Unit, Queue)
        A queue for each unit, pinned to its stream.
    work : Dispatcher
    expected_s : callable
        Predicted seconds for a piece, by a unit's id and the piece's length.

    Attributes
    ----------
    ran : list of Ran
        What was computed, in the order in which it ended.
    failures : dict of str to PolymuxError
        Units that failed, and how; others have computed their pieces.
    """

    def __init__(
        self,
        client: Client,
        call: Call,
        lanes: Sequence[tuple[Unit, Queue]],
        work: Dispatcher,
        expected_s: Callable[[str, int], float],
    ) -> None:
        self._client = client
        self._call = call
        self._work = work
        self._expected_s = expected_s
        self._lanes = [_Lane(*lane) for lane in lanes]
        self.ran: list[Ran] = []
        self.failures: dict[str, PolymuxError] = {}

    def carry_out(self, others: bool) -> bool:
        """Compute everything.

        Parameters
        ----------
        others : bool
            Whether there are units that do not take part.

        Returns
        -------
        bool
            False when all that take part have failed, and there are others.

        Raises
        ------
        TaskFailed
            What a kernel said of the arguments, or the last device's failure.
        DeviceUnavailable
            When a device does not answer; what it may still write goes to memory that nobody else gets before it ends.
        ServerGone
        """
        try:
            with kept_off([lane.unit for lane in self._lanes], _libc.sched_getcpu):
                self._supply()
                while any(lane.under_way for lane in self._lanes):
                    if not self._collect():
                        self._sleep()
                    self._supply()
        except BaseException as error:
            self._abandon()
            if isinstance(error, TaskFailed) and others and all(lane.failed for lane in self._lanes):
                return False
            raise
        if not self._work.finished:
            raise next(
                iter(self.failures.values()), PolymuxError("co-execution ended before all was computed")
            )
        return True

    def _supply(self) -> None:
        """Give the next piece to every unit that is idle or about to be.

        The unit whose core this thread is on comes last: when it begins, this thread may have to wait for its core.
        """
        here = _libc.sched_getcpu()
        for lane in sorted(self._lanes, key=lambda lane: here in lane.unit.place.cores):
            while not lane.failed and lane.wants(now := now_ns()):
                chunk = self._work.take(lane.unit.id, now)
                if chunk is None:
                    lane.asked = True
                    break
                try:
                    piece = self._call.submit(lane.queue, lane.unit, chunk)
                except CALLERS_FAULT:
                    raise
                except TaskFailed as error:
                    self._fail(lane, error)
                    break
                expected_s = self._expected_s(lane.unit.id, chunk.count)
                lane.under_way.append(_UnderWay(chunk, piece, now, int(expected_s * 1e9)))

    def _collect(self) -> bool:
        """Take what has ended; False when nothing has.

        When this thread comes late to several pieces of a unit, each gets its predicted part of the time.
        """
        found = False
        for lane in self._lanes:
            ended: list[_UnderWay] = []
            while lane.under_way and lane.under_way[0].piece.task.done():
                found = True
                its = lane.under_way.popleft()
                try:
                    its.piece.join()
                except CALLERS_FAULT:
                    raise
                except TaskFailed as error:
                    self._note(lane, ended)
                    ended.clear()
                    self._fail(lane, error)
                    break
                finally:
                    its.piece.drop()
                ended.append(its)
            self._note(lane, ended)
        if found:
            for lane in self._lanes:
                lane.asked = False
        return found

    def _note(self, lane: _Lane, ended: Sequence[_UnderWay]) -> None:
        """Say what pieces of a unit took that were found to have ended."""
        if not ended:
            return
        start_ns = max(ended[0].taken_ns, lane.free_ns)
        ends_ns = shared_out(start_ns, now_ns(), [its.expected_ns for its in ended])
        for its, end_ns in zip(ended, ends_ns, strict=True):
            self.ran.append(Ran(lane.unit, its.chunk, (end_ns - start_ns) / 1e9, its.expected_ns / 1e9))
            self._work.done(lane.unit.id, its.chunk, end_ns)
            start_ns = lane.free_ns = end_ns

    def _fail(self, lane: _Lane, error: TaskFailed) -> None:
        """Let others compute what a unit has; its pieces that are still under way end first, since they write."""
        if lane.failed:
            return
        lane.failed = True
        self.failures[lane.unit.id] = error
        self._drain(lane)
        try:
            self._work.failed(lane.unit.id, now_ns())
        except DeviceUnavailable:
            raise error from None
        for other in self._lanes:
            other.asked = False

    def _sleep(self) -> None:
        """Wait until any piece has ended, a unit is to get its next one, or is late while others have nothing to do."""
        value = self._client.completion_value()
        now = now_ns()
        timeout_ns = _ALIVE_CHECK_NS
        idle = any(not lane.under_way and not lane.failed for lane in self._lanes)
        for lane in self._lanes:
            if not lane.under_way:
                continue
            task = lane.under_way[0].piece.task
            task.want()
            if task.done():
                return
            if self._work.handed_out:
                continue
            if len(lane.under_way) == 1 and not lane.asked:
                timeout_ns = min(timeout_ns, max(lane.due_ns - now, _SHORTEST_NS))
            if idle:
                timeout_ns = min(timeout_ns, lane.late_ns(now) - now)
        if not self._client.completion_wait(value, timeout_ns):
            if self._client.server_gone:
                raise ServerGone("the server is gone; connect again when it is back")
            for lane in self._lanes:  # a piece that is late may have made it worth to take others over
                lane.asked = False
                if not lane.under_way or lane.under_way[0].piece.task.done():
                    continue  # else this thread was held up, not the device
                if now_ns() > lane.given_up_ns:
                    raise self._silent(lane)

    def _silent(self, lane: _Lane) -> DeviceUnavailable:
        """Make the error of a device that does not answer."""
        its = lane.under_way[0]
        waited_s = (now_ns() - max(its.taken_ns, lane.free_ns)) / 1e9
        error = DeviceUnavailable(
            f"{lane.unit.id} has not answered for {waited_s:.0f} s on {its.chunk.count} of"
            f" {self._call.way.problem.extent} from {its.chunk.first} on, predicted to take"
            f" {its.expected_ns / 1e9:.3g} s; look at `polymux devices`, or leave"
            " it out with devices="
        )
        self.failures[lane.unit.id] = error
        return error

    def _drain(self, lane: _Lane) -> None:
        """Wait for what a unit has under way."""
        while lane.under_way:
            piece = lane.under_way[0].piece
            try:
                piece.task.error(max(0.0, (lane.given_up_ns - now_ns()) / 1e9))
            except TimeoutError:
                raise self._silent(lane) from None
            lane.under_way.popleft()
            lane.free_ns = now_ns()
            piece.drop()

    def _abandon(self) -> None:
        """Let nothing write to the caller's arrays any more."""
        for lane in self._lanes:
            try:
                self._drain(lane)
            except (
                PolymuxError
            ):  # the server is gone: nothing runs; or the device is silent: buffers outlive their tasks
                lane.under_way.clear()


def shared_out(start_ns: int, end_ns: int, expected_ns: Sequence[int]) -> list[int]:
    """Say when each of some pieces ended that ran one after the other: each gets its predicted part of the time.

    Parameters
    ----------
    start_ns, end_ns : int, ns
        When the first one began, and when the last one was found to have ended.
    expected_ns : sequence of int, ns
        As predicted.

    Returns
    -------
    list of int, ns
    """
    weights = [max(1, expected) for expected in expected_ns]
    whole, ran, ends = sum(weights), 0, []
    for weight in weights:
        ran += weight
        ends.append(start_ns + (end_ns - start_ns) * ran // whole)
    return ends
