"""The numerical application: how warm the parts of a chip become, step by step, on whichever device it is given.

It submits batches of time steps and waits for them; it never asks where they run.
"""

from __future__ import annotations

import signal
import time
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import polymux
from polymux.core.errors import PolymuxError
from polymux.demo.chip import Chip
from polymux.demo.message import Ended, Failed, Finding, Prepared, Steps, Teller

__all__ = ["APPLICATION", "KERNEL", "run_heat"]

APPLICATION = "heat"
"""Name under which the application connects, and of its queue."""

KERNEL = "stencil"
"""What it submits."""

_SIDE = 768  # cells
_BATCH = 10  # steps
_PERIOD_S = (
    0.05  # between two batches: 200 steps a second, like a simulation that keeps pace with an experiment
)
_LOOK_EVERY = 20  # batches
_CHECK_EVERY = 100  # steps
_TIMEOUT_S = 30.0


def run_heat(socket: str, result: Path, end: Event, connection: Connection) -> None:
    """Run the application; the main function of its process.

    Parameters
    ----------
    socket : str
        The server's socket.
    result : Path
        Where the temperatures at the end go, as ``.npy``.
    end : Event
        Set when the load is to end.
    connection : Connection
        Where its messages go, and from where one comes when the load is to begin.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started it tells when to end
    teller = Teller(APPLICATION, connection)
    chip = Chip(_SIDE)
    try:
        with polymux.connect(socket, name=APPLICATION, start=False) as client:
            teller.tell(Prepared(APPLICATION))
            connection.recv()
            steps, temperatures = _compute(client, chip, end, teller)
        np.save(result, temperatures)
        teller.tell(Ended(APPLICATION, (_check(chip, steps, temperatures, teller),)))
    except EOFError:  # the process that started it is gone
        pass
    except (PolymuxError, OSError) as error:
        teller.tell(Failed(APPLICATION, str(error)))
    finally:
        connection.close()


def _compute(
    client: polymux.Client, chip: Chip, end: Event, teller: Teller
) -> tuple[int, NDArray[np.float32]]:
    """Compute until it is time to end; steps done, and the temperatures."""
    steps, batches, longest_ns, hottest = 0, 0, 0, 0.0
    with client.queue(APPLICATION) as queue:
        now, after = queue.array(chip.start()), queue.empty(chip.power.shape, np.float32)
        power = queue.array(chip.power)
        due = time.monotonic()
        while not end.wait(max(0.0, due - time.monotonic())):
            due = max(due + _PERIOD_S, time.monotonic())
            start_ns = time.monotonic_ns()
            for _ in range(_BATCH):
                queue.submit(KERNEL, [now, power], [after], **chip.scalars)
                now, after = after, now
            queue.synchronize(_TIMEOUT_S)
            longest_ns = max(longest_ns, time.monotonic_ns() - start_ns)
            steps += _BATCH
            batches += 1
            if batches % _LOOK_EVERY == 1:
                hottest = float(now.numpy(_TIMEOUT_S).max())
            teller.tell(Steps(steps, longest_ns, f"hottest place {hottest:.2f} °C"))
        return steps, now.numpy(_TIMEOUT_S).copy()


def _check(chip: Chip, steps: int, temperatures: NDArray[np.float32], teller: Teller) -> Finding:
    """Compute the same steps with NumPy and compare every bit."""
    expected, reference = chip.start(), chip.reference()
    for done in range(1, steps + 1):
        expected = next(reference)
        if done % _CHECK_EVERY == 0:
            teller.tell(Steps(steps, 0, f"NumPy checks step {done} of {steps}"))
    differing = int((temperatures != expected).sum())
    off = float(np.abs(temperatures - expected).max())
    return Finding(
        f"temperatures of {temperatures.size:,} cells after {steps:,} steps, against NumPy",
        "every bit the same" if not differing else f"{differing:,} cells differ, by up to {off:.2g} K",
        steps > 0 and not differing,
    )
