"""A training loop that gives way, moves, is written down and resumes."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self, TypeVar

from torch.optim import Optimizer

from polymux.core.errors import InvalidRequest, LeaseLost
from polymux.training.checkpoint import read_checkpoint, remove_leftovers, write_checkpoint
from polymux.training.gate import SHUT, Gate
from polymux.training.hooks import Handle, hook_modules, hook_optimizers
from polymux.training.joining import socket_of
from polymux.training.lease_keeper import Lease, LeaseKeeper
from polymux.training.memory import ran_out_of_memory
from polymux.training.options import JobOptions
from polymux.training.placement import Placement
from polymux.training.state import TrainingState
from polymux.training.termination import Interrupted, Termination

_log = logging.getLogger("polymux.training")
_running = threading.Lock()
Batch = TypeVar("Batch")


class Job:
    """A training loop between entering and leaving the ``with`` block; `job` makes one.

    Parameters
    ----------
    options : JobOptions
    open_lease : callable
        Returns an open lease of a server's.

    Attributes
    ----------
    resumed : bool
        Whether it goes on from a checkpoint.
    """

    def __init__(self, options: JobOptions, open_lease: Callable[[], Lease]) -> None:
        self.resumed = False
        self._options = options
        self._state = TrainingState(
            options.model, options.optimizers, options.state, exact=options.checkpoint is not None
        )
        self._gate = Gate(self._ask)
        self._termination = Termination(self._shut)
        self._placement = Placement(options.same_threads)
        self._keeper = LeaseKeeper(
            self._gate,
            open_lease,
            where=socket_of(options.socket),
            alone=options.alone,
            termination=self._termination,
            granted=self._placement.move,
        )
        self._asking = threading.RLock()
        self._between_steps = False
        self._pid = os.getpid()
        self._handles: list[Handle] = []
        self._steps_are_told = False
        self._steps_counted = 0
        self._batch_at_hand: int | None = None
        self._optimizer_runs = self._step_is_made = False
        self._resuming = False
        self._written_at = 0.0

    @property
    def steps(self) -> int:
        """Steps done, those before it was resumed included."""
        return self._state.steps

    @property
    def device(self) -> str | None:
        """The device that the job has or had last; None without a server and before the first boundary."""
        return self._keeper.device

    @property
    def boundary_ns(self) -> int:
        """Longest time between two boundaries of a step, in nanoseconds, in the least disturbed of the last steps."""
        return self._gate.boundary_ns

    def step(self) -> None:
        """End a step: the last line of the loop's body. The job may give way here, and be ended.

        Without it, and without `batches`, a step ends when its optimizer has run, the last one of several.

        Raises
        ------
        LeaseLost
            When the server has ended the lease.
        """
        if not self._steps_are_told:
            self._steps_are_told = True
            if self._steps_counted:  # when its optimizer ran, nobody knew yet that this step would be told
                self._state.steps -= 1
        self._end_step()
        self._between_steps = True
        try:
            self._gate.check()
        finally:
            self._between_steps = False

    def epochs(self, count: int) -> Iterator[int]:
        """Number the passes over the data, from the one that a resumed job is in.

        Parameters
        ----------
        count : int
            Passes altogether.

        Yields
        ------
        int
            From 0, or from where the checkpoint was written.
        """
        state = self._state
        for epoch in range(state.epoch, count):
            if not (self._resuming and state.restore_epoch_random()):
                state.begin_epoch(epoch)
            yield epoch
            self._resuming = False
        state.finish_epochs(count)

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Go through the batches of a pass, each one a step; a resumed job leaves out those that are done.

        Use it within `epochs`. What shuffles by PyTorch's, Python's or NumPy's global generator comes in the same order
        again.

        Parameters
        ----------
        loader : iterable
            Such as a ``DataLoader``.
        """
        self._steps_are_told = True
        done = self._state.batch if self._resuming else 0
        self._resuming = False
        rest = iter(loader)
        for _ in range(done):
            next(rest, None)
        if done:
            self._state.rewind_random()
        for number, batch in enumerate(rest, start=done + 1):
            self._batch_at_hand, steps = number, self._state.steps
            try:
                yield batch
            except GeneratorExit:  # the loop breaks off after this batch
                if self._step_is_made:
                    self._count_step()
                self._batch_at_hand = None
                raise
            if self._state.steps == steps:  # the loop may have called step() itself
                self.step()
        self._batch_at_hand = None

    def checkpoint(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Write a checkpoint now; call it between two steps.

        Parameters
        ----------
        path : path, optional
            Another file than that of the job.

        Returns
        -------
        Path

        Raises
        ------
        InvalidRequest
            When the job has no file and none is named.
        OSError
            When it cannot be written; an older checkpoint stays.
        """
        target = self._options.checkpoint if path is None else Path(path)
        if target is None:
            raise InvalidRequest("the job has no checkpoint file: name one here, or with job(checkpoint=...)")
        if self._state.changed:
            self._state.take(steps=self._state.steps + 1, batch=self._batch_at_hand)
            self._write(target)
            self._state.changed = True  # the step goes on, and may draw from the generators yet
        else:
            if not self._state.exact:
                self._state.take()
            self._write(target)
        return target

    def idle(self) -> None:
        """Give the device back until the next boundary: before a long wait for data, or work that needs no device."""
        self._keeper.idle()

    def __enter__(self) -> Self:
        if not _running.acquire(blocking=False):
            raise InvalidRequest("another training job runs in this process: end its `with` block first")
        try:
            self._begin()
        except BaseException:
            self._detach()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is not None and ran_out_of_memory(error):
                self._count_untold()
                self._tell_of(error)
            elif self._options.checkpoint is not None:
                if kind is None:
                    self.checkpoint()
                elif issubclass(kind, KeyboardInterrupt):
                    self._count_untold()
                    self._save("Ctrl-C")
        finally:
            self._detach()

    def _tell_of(self, error: BaseException) -> None:
        """Keep the last boundary, and say what can be done about too little memory."""
        if self._save("running out of memory"):
            path = self._options.checkpoint
            _log.error("out of memory; the last boundary, step %d, is in %s", self.steps, path)
        error.add_note(
            "polymux: the lease is given back; resume with smaller batches, or tell job(peak_nbytes=...) what a step"
            " needs, so that nobody else has that memory meanwhile"
        )

    def _begin(self) -> None:
        options = self._options
        if options.checkpoint is not None:
            remove_leftovers(options.checkpoint)
            contents = read_checkpoint(options.checkpoint) if options.resume else None
            if contents is not None:
                self._state.load(contents, str(options.checkpoint))
                self.resumed = self._resuming = True
                _log.info("going on after step %d of %s", self.steps, options.checkpoint)
            if not self._termination.install():
                _log.warning(
                    "the job is not in the main thread: SIGTERM ends the process without a checkpoint"
                )
        self._state.boundary()
        self._written_at = time.monotonic()
        self._keeper.open()
        if options.grain == "module":
            self._handles += hook_modules(self._gate.check)
        self._handles += hook_optimizers(options.optimizers, self._before_optimizer, self._after_optimizer)
        self._gate.begin()

    def _detach(self) -> None:
        try:
            for handle in self._handles:
                handle.remove()
            self._handles.clear()
            self._termination.restore()
            self._keeper.close()
            self._placement.restore()
        finally:
            _running.release()

    def _before_optimizer(self) -> None:
        self._gate.check()
        self._optimizer_runs = self._state.changed = True

    def _after_optimizer(self, optimizer: Optimizer) -> None:
        self._optimizer_runs = False
        self._step_is_made = optimizer is self._options.optimizers[-1]
        if self._step_is_made and not self._steps_are_told:
            self._steps_counted += 1
            self._end_step()

    def _count_untold(self) -> None:
        """Count a step that had been made when the loop broke off, but not been told yet."""
        if self._step_is_made and not self._optimizer_runs:
            self._count_step()

    def _count_step(self) -> None:
        """Take the state for that after one more step."""
        state = self._state
        state.steps += 1
        if self._batch_at_hand is not None:
            state.batch = self._batch_at_hand
        if state.changed or not self._options.optimizers:  # else gradients are still being gathered
            state.boundary()
        self._step_is_made = False

    def _end_step(self) -> None:
        gate = self._gate
        self._count_step()
        gate.step()
        self._placement.step_done()
        self._keeper.step_done(gate.step_ns, gate.boundary_ns, self._state.steps)
        every_s = self._options.checkpoint_every_s
        if every_s is not None and time.monotonic() >= self._written_at + every_s:
            self._save("the time for it")
        if self._termination.requested:
            self._shut()

    def _ask(self) -> None:
        """Called at a boundary at which the gate is not open."""
        if os.getpid() != self._pid:  # a worker process of a data loader that was forked off
            return
        with self._asking:
            try:
                if self._state.changed:  # an optimizer is at work: this step has to be finished
                    self._keeper.ask(self._between_steps)
                else:
                    with self._termination.interrupting():
                        self._keeper.ask(self._between_steps)
            except Interrupted:
                self._leave()
            except LeaseLost:
                self._save("the loss of the lease")
                raise
            if self._termination.requested:
                self._shut()

    def _shut(self) -> None:
        self._gate.word = SHUT

    def _leave(self) -> NoReturn:
        if self._save("SIGTERM"):
            _log.warning("SIGTERM: step %d is in %s", self.steps, self._options.checkpoint)
        self._termination.leave()

    def _save(self, why: str) -> bool:
        """Write the checkpoint if there is one to write; what goes wrong is told and no more."""
        path = self._options.checkpoint
        if path is None:
            return False
        try:
            if self._write(path):
                return True
            _log.warning("%s came while an optimizer was at work; %s stays as it was", why, path)
        except (OSError, MemoryError, RuntimeError) as error:  # PyTorch's are of the last kind
            _log.error("the checkpoint for %s cannot be written: %s", why, error)
        return False

    def _write(self, path: Path) -> bool:
        contents = self._state.contents()
        if contents is not None:
            write_checkpoint(path, contents)
            self._written_at = time.monotonic()
        return contents is not None
