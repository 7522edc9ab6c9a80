"""A client that writes its segment by hand, so that it can write what the library never would."""

from __future__ import annotations

import ctypes
import mmap
import struct

import numpy as np

from polymux.segment import NativeTable, Segment, Worker, layout, queue_nbytes, slots_in_queue

LAYOUT = layout()
NOOP = 16
TAKES_TWO = 17
NO_KERNEL = 999

_CALLS: list[tuple[int, int]] = []
_KERNEL = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


@_KERNEL
def _touch_every_byte(call: int) -> int:
    """Read and write all that the task was given: what is out of bounds would crash here."""
    n_buffers = ctypes.c_uint32.from_address(call + 4).value
    buffers = ctypes.c_uint64.from_address(call + 8).value
    for i in range(n_buffers):
        data, nbytes = (ctypes.c_uint64.from_address(buffers + i * 96 + at).value for at in (0, 8))
        view = (ctypes.c_ubyte * nbytes).from_address(data)
        if nbytes:
            view[nbytes - 1] = view[0]
    _CALLS.append((n_buffers, ctypes.c_uint32.from_address(call + 24).value))
    return 0


class HandMadeClient:
    """Both sides of a segment in one process: the server's classes, and bare bytes for the client."""

    def __init__(self, capacity: int = 64, nbytes: int = 64 << 20) -> None:
        self.segment = Segment(nbytes)
        self.memory = mmap.mmap(self.segment.fd, self.segment.nbytes)
        self.bytes = np.frombuffer(self.memory, np.uint8)
        self.capacity = capacity
        self.region = LAYOUT["data_offset"]
        self.index = self.segment.open_queue(self.region, capacity)
        self.free = -(-(self.region + queue_nbytes(capacity)) // 4096) * 4096
        self.table = NativeTable()
        address = ctypes.cast(_touch_every_byte, ctypes.c_void_p).value
        assert address is not None
        self.table.set(NOOP, address, 0, 0, True, [], 0, True)
        self.table.set(TAKES_TWO, address, 1, 1, False, [1 << 10, 1 << 10], 16, True)
        self.worker = Worker(0, self.table, spin_ns=0)
        self.worker.bind(self.segment, self.index, "q")
        self.tail = 0
        _CALLS.clear()

    @property
    def calls(self) -> list[tuple[int, int]]:
        """(number of buffers, bytes of arguments) of every native call."""
        return _CALLS

    def put(self, offset: int, data: bytes) -> None:
        self.bytes[offset : offset + len(data)] = np.frombuffer(data, np.uint8)

    def buffer(
        self, slot: int, offset: int, nbytes: int, shape: list[int], dtype: int = 10, generation: int = 0
    ) -> None:
        """Write an entry of the buffer table."""
        entry = struct.pack(
            "<IiiIQQ8q", generation, dtype, len(shape), 0, offset, nbytes, *shape, *[0] * (8 - len(shape))
        )
        self.put(LAYOUT["table_offset"] + slot * LAYOUT["buffer_entry_nbytes"], entry)

    def descriptor(self, data: bytes) -> None:
        """Put a descriptor into the next slot and publish it."""
        at = (
            self.region
            + slots_in_queue(self.capacity)
            + (self.tail % self.capacity) * LAYOUT["task_slot_nbytes"]
        )
        self.put(at, data)
        self.tail += 1

    def task(
        self,
        kernel: int,
        refs: list[tuple[int, int, int]],
        arguments: bytes = b"",
        sequence: int | None = None,
    ) -> bytes:
        """A descriptor; refs are (slot, generation, access)."""
        number = self.tail + 1 if sequence is None else sequence
        header = struct.pack("<IHBBQqbBHI", kernel, len(arguments), len(refs), 0, number, 0, 0, 0, 0, 0)
        return header + b"".join(struct.pack("<IHBB", *ref, 0) for ref in refs) + arguments

    def drain(self) -> list[tuple[int, str]]:
        """Let the worker take all; (status, text) of those that came to the caller, which fails them."""
        if self.tail:
            self.descriptor(self.task(NO_KERNEL, []))  # comes to the caller, behind everything else
        refused = []
        while True:
            kind, payload = self.worker.next()
            if kind == "violation":
                return [*refused, (-1, payload[1])]
            if kind != "task":
                continue
            status = payload.status or 2
            self.worker.complete(payload, status, payload.fault or "no such kernel")
            if payload.sequence == self.tail and payload.kernel_id == NO_KERNEL:
                return refused
            refused.append((status, payload.fault or "no such kernel"))

    def completed(self) -> int:
        at = self.region + LAYOUT["queue_completed"]
        return int(struct.unpack("<Q", self.bytes[at : at + 8].tobytes())[0])

    def close(self) -> None:
        self.worker.unbind("q")
        kind = ""
        while kind != "released":
            kind, _ = self.worker.next()
        self.segment.close()
        del self.bytes
        self.memory.close()
