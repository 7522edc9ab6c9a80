"""A ring in a segment of this process, to which a test submits by hand what a worker takes."""

from __future__ import annotations

import mmap
import struct

from polymux.segment import Segment, cycles, layout, queue_nbytes, slots_in_queue

LAYOUT = layout()
SUBMITTED_SHIFT = 10
"""Cycles of a tick of a descriptor's moment of submission, as a power of two."""


class Rings:
    """A segment with some queues.

    Parameters
    ----------
    n : int
        Queues.
    capacity : int
        Of each.
    """

    def __init__(self, n: int = 1, capacity: int = 1024) -> None:
        self.segment = Segment(32 << 20)
        self._memory = mmap.mmap(self.segment.fd, self.segment.nbytes)
        self._capacity = capacity
        self._regions = [
            self.segment.data_offset + i * -(-queue_nbytes(capacity) // 4096) * 4096 for i in range(n)
        ]
        self.indices = [self.segment.open_queue(region, capacity) for region in self._regions]
        self._submitted = [0] * n

    def submit(
        self,
        queue: int = 0,
        kernel: int = 999,
        refs: list[tuple[int, int, int]] | None = None,
        *,
        priority: int = 0,
        deadline_ns: int = 0,
        stamp: int | None = None,
    ) -> int:
        """Put a task into a queue's ring; its sequence number. stamp: when, in ticks; now if None."""
        refs = refs or []
        number = self._submitted[queue] + 1
        stamp = (cycles() >> SUBMITTED_SHIFT) % 2**32 if stamp is None else stamp
        header = struct.pack(
            "<IHBBQqbBHI", kernel, 0, len(refs), 0, number, deadline_ns, priority, 0, 0, stamp
        )
        slot = (number - 1) % self._capacity * LAYOUT["task_slot_nbytes"]
        at = self._regions[queue] + slots_in_queue(self._capacity) + slot
        data = header + b"".join(struct.pack("<IHBB", *ref, 0) for ref in refs)
        self._memory[at : at + len(data)] = data
        tail = self._regions[queue] + LAYOUT["queue_tail"]
        self._memory[tail : tail + 8] = struct.pack("<Q", number)
        self._submitted[queue] = number
        return number

    def buffer(self, slot: int, nbytes: int, generation: int = 0) -> None:
        """Write an entry of the buffer table: float32, one dimension."""
        offset = self.segment.nbytes - (slot + 1) * 65536
        entry = struct.pack("<IiiIQQ8q", generation, 10, 1, 0, offset, nbytes, nbytes // 4, *[0] * 7)
        at = LAYOUT["table_offset"] + slot * LAYOUT["buffer_entry_nbytes"]
        self._memory[at : at + len(entry)] = entry

    def completed(self, queue: int = 0) -> int:
        """How many tasks of a queue have ended."""
        at = self._regions[queue] + LAYOUT["queue_completed"]
        return int.from_bytes(self._memory[at : at + 8], "little")
