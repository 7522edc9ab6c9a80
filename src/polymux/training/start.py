"""`job`: one line that puts an ordinary PyTorch loop under a lease on a device."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch.nn import Module
from torch.optim import Optimizer

from polymux.training.joining import open_lease
from polymux.training.options import Grain, JobOptions, resident_nbytes
from polymux.training.state import Stateful
from polymux.training.training_job import Job


def job(
    model: Module,
    optimizer: Optimizer | Sequence[Optimizer] = (),
    *,
    name: str | None = None,
    priority: int | None = None,
    weight: float | None = None,
    device: str | None = None,
    levels: Sequence[str] | None = None,
    memory_nbytes: int | None = None,
    peak_nbytes: int | None = None,
    grain: Grain = "module",
    same_threads: bool = True,
    alone: bool = False,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every_s: float | None = None,
    resume: bool = True,
    state: Mapping[str, Stateful] | None = None,
    socket: str | None = None,
) -> Job:
    """Put a training loop under a lease, so that others can use the device while it trains.

    The loop gives way to served models and to jobs of higher priority, shares with its like by weight, and may go on
    on other cores than before. What it computes are the same bits as without.

    Parameters
    ----------
    model : Module
    optimizer : Optimizer or sequence of Optimizer
        All that change the model.
    name : str, optional
        Shown to the operator; the program's name by default.
    priority : int, optional
        Larger goes first; 0 by default, or that of the `polymux run` around this process.
    weight : float, optional
        Part of the device time among jobs of the same priority, 0.01 to 100; 1.0 by default, likewise.
    device : str, optional
        The only one to train on, as ``"cpu:0"``; None: the server decides, and may change its mind.
    levels : sequence of str, optional
        How it may be made to give way: ``"step"``, ``"boundary"``, ``"idle"``, ``"stop"``, see `polymux.Client.lease`;
        None: by everything that the device can do.
    memory_nbytes, peak_nbytes : int, optional
        What stays resident, and the most that a step needs; by default the weights, their gradients and the
        optimizer's state, without activations.
    grain : {"module", "step"}
        Where the job gives way by itself: after every module forward and backward, or between steps only.
    same_threads : bool
        Keep PyTorch's number of threads wherever the job goes, which the results depend on in their last bits. False:
        as many as the device has cores, from the next step on.
    alone : bool
        Go on without a server when there is none or when it goes away. False: wait for it.
    checkpoint : path, optional
        File to write when the job is ended by SIGTERM or Ctrl-C, when it loses its lease, when the block ends, and on
        demand.
    checkpoint_every_s : float, optional
        Also write it when so many seconds have passed, between two steps.
    resume : bool
        Go on from the checkpoint if the file is there.
    state : mapping of str to Stateful, optional
        What else belongs into the checkpoint: anything with ``state_dict`` and ``load_state_dict``, such as a learning
        rate scheduler.
    socket : str, optional
        The server's socket; that of this user if None.

    Returns
    -------
    Job
        To be used in a ``with`` statement.

    Raises
    ------
    InvalidRequest
        For a value that cannot be; on entering, also when the server says so, or when another job runs in this process.
    BadCheckpoint
        On entering: the checkpoint is damaged, or not of this model.

    Notes
    -----
    A boundary costs less than 1 us while nobody wants the device. The job talks through the logger
    ``polymux.training``.
    """
    optimizers = tuple(optimizer) if isinstance(optimizer, (list, tuple)) else (optimizer,)
    resident = memory_nbytes
    if resident is None:
        known = isinstance(model, Module) and all(isinstance(other, Optimizer) for other in optimizers)
        resident = resident_nbytes(model, optimizers) if known else 0  # what is wrong is told below
    options = JobOptions(
        model=model,
        optimizers=optimizers,
        socket=socket,
        name=name,
        priority=priority,
        weight=weight,
        device=device,
        levels=levels,
        memory_nbytes=resident,
        peak_nbytes=resident if peak_nbytes is None else peak_nbytes,
        grain=grain,
        same_threads=same_threads,
        alone=alone,
        checkpoint=None if checkpoint is None else Path(checkpoint),
        checkpoint_every_s=checkpoint_every_s,
        resume=resume,
        state=dict(state or {}),
    )
    return Job(options, lambda: open_lease(options))
