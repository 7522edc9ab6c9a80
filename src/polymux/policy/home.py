"""When a queue that is away at a helper accelerator goes home.

A queue is away because its home lacks a kernel. Before each of its tasks that could run at home the question is
whether to go back, which costs moving the data, and perhaps moving it away again soon.

The rule is that of renting or buying skis: stay until the time lost by staying equals the price of moving, then
move; this costs at most about twice what the best choice in hindsight would have.

1. The task would not run faster at home: stay.
2. Estimates known: go when the gains of the tasks since the queue went away, this one included, reach the price. The
   price is the transfer's time, doubled for each short stay in a row: the first doubling pays for the way back, the
   others keep a queue from going to and fro. A single task whose gain pays for both ways goes home always.
3. An estimate is missing: go at once when the transfer is known to be small and the last stay was not short; else
   after `PATIENCE` such tasks, doubled likewise. The visit brings the missing measurement.

A stay at home is short when moving to and fro took more than a tenth of it, or takes an unknown time. The engine
remembers the last five, so the price is doubled five times at most.

References
----------
A. Karlin, M. Manasse, L. Rudolph, D. Sleator, "Competitive snoopy caching", Algorithmica 3, 1988.
"""

from __future__ import annotations

from polymux.core.event import HomePossible
from polymux.core.snapshot import QueueView

SMALL_TRANSFER_NS = 1_000_000
"""A transfer that is tried without knowing the gain, in ns."""

PATIENCE = 4
"""Tasks that could have run at home before the queue goes there on unknown estimates."""

LONG_STAY_TRANSFERS = 20
"""A stay at home as long as this many transfers is not short."""


def goes_home(queue: QueueView, event: HomePossible) -> tuple[bool, str]:
    """Decide whether `queue` goes home now.

    Parameters
    ----------
    queue : QueueView
        With `chances` and `credit_ns` that count this event's task.
    event : HomePossible

    Returns
    -------
    goes : bool
    reason : str
    """
    transfer_ns, gain_ns = event.transfer_ns, event.gain_ns
    if gain_ns is not None and gain_ns <= 0:
        return False, f"{event.kernel} is not faster at home ({gain_ns} ns)"
    shorts = _short_stays(queue, transfer_ns)
    if transfer_ns is not None and gain_ns is not None:
        if gain_ns >= 2 * transfer_ns:
            return True, f"home gains {gain_ns} ns, moving there and back costs {2 * transfer_ns} ns"
        price_ns = transfer_ns << shorts
        return (
            queue.credit_ns >= price_ns,
            f"home would have gained {queue.credit_ns} ns, the price is {price_ns} ns",
        )
    if transfer_ns is not None and transfer_ns <= SMALL_TRANSFER_NS and not shorts:
        return True, f"the gain is unknown and moving costs only {transfer_ns} ns"
    patience = PATIENCE << shorts
    reason = (
        f"task {queue.chances} that could run at home, tried after {patience} while estimates are missing"
    )
    return queue.chances >= patience, reason


def _short_stays(queue: QueueView, transfer_ns: int | None) -> int:
    """Count the short stays since the last long one."""
    count = 0
    for stay_ns in reversed(queue.stays_ns):
        if transfer_ns is not None and stay_ns >= LONG_STAY_TRANSFERS * transfer_ns:
            break
        count += 1
    return count
