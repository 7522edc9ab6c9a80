"""A client of a real server that speaks the socket's protocol and writes its segment by hand, as no library would."""

from __future__ import annotations

import array
import ctypes
import mmap
import os
import platform
import socket
import struct
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from polymux.segment import PROTOCOL_VERSION, layout, queue_nbytes, slots_in_queue

LAYOUT = layout()
SYS_FUTEX = {"x86_64": 202, "aarch64": 98}[platform.machine()]
FUTEX_WAKE = 1
HEADER = struct.Struct("<IHBBQqbBHI")
"""Kernel, bytes of arguments, buffers, flags, sequence, deadline, priority, share, device, reserved."""
REFERENCE = struct.Struct("<IHBB")
"""Slot, generation, access, reserved."""


class DroppedError(Exception):
    """The server has closed the connection."""


class RawPeer:
    """A connection to a server at a socket path.

    Parameters
    ----------
    path : str
    """

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.connect(path)
        self.socket.settimeout(30)
        self.memory: mmap.mmap | None = None
        self.bytes: NDArray[np.uint8] = np.empty(0, np.uint8)
        self.region = LAYOUT["data_offset"]
        self.tail = 0
        self._requests = 0

    def send(self, data: bytes, descriptors: tuple[int, ...] = ()) -> None:
        """Send a packet."""
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        try:
            self.socket.sendmsg([data], ancillary if descriptors else [], socket.MSG_NOSIGNAL)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise DroppedError(str(error)) from None

    def receive(self) -> tuple[str, dict[str, str], list[int]]:
        """Receive a message: its head, fields and descriptors."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self.socket, 1 << 17, 8)
        except ConnectionResetError as error:
            raise DroppedError(str(error)) from None
        if not data:
            raise DroppedError("closed by the server")
        if data.startswith(b"carried "):
            data = os.pread(descriptors[0], int(data[8:]), 0)
            os.close(descriptors.pop(0))
        head, *lines = data.decode().split("\n")
        return head, dict(line.split(" ", 1) for line in lines), list(descriptors)

    def ask(self, operation: str, **fields: object) -> tuple[str, dict[str, str], list[int]]:
        """Send a request and wait for its answer."""
        self._requests += 1
        number = str(self._requests)
        lines = [operation, f"id {number}", *(f"{key} {value}" for key, value in fields.items())]
        self.send("\n".join(lines).encode())
        while True:
            head, answer, descriptors = self.receive()
            if answer.get("id") == number:
                return head, answer, descriptors
            for descriptor in descriptors:
                os.close(descriptor)

    def hello(self, nbytes: int = 32 << 20) -> dict[str, str]:
        """Begin a session and map its segment."""
        head, fields, descriptors = self.ask(
            "hello", version=PROTOCOL_VERSION, name="raw", segment_nbytes=nbytes
        )
        assert head == "ok", fields
        self.memory = mmap.mmap(descriptors[0], int(fields["segment_nbytes"]))
        os.close(descriptors[0])
        self.bytes = np.frombuffer(self.memory, np.uint8)
        return fields

    def open_queue(self, capacity: int = 64, device: str = "") -> str:
        """Open a queue at the beginning of the segment's data; the id."""
        self.capacity = capacity
        self.tail = 0
        self.bytes[self.region : self.region + queue_nbytes(capacity)] = 0
        head, fields, _ = self.ask("queue_open", offset=self.region, capacity=capacity, device=device)
        assert head == "ok", fields
        return fields["queue"]

    @property
    def free(self) -> int:
        """Offset of the first page behind the queue."""
        return -(-(self.region + queue_nbytes(self.capacity)) // 4096) * 4096

    def kernel_id(self, name: str) -> int:
        """Number of a kernel."""
        head, fields, _ = self.ask("kernel", name=name)
        assert head == "ok", fields
        return int(fields["kernel_id"])

    def put(self, offset: int, data: bytes) -> None:
        """Write into the segment."""
        self.bytes[offset : offset + len(data)] = np.frombuffer(data, np.uint8)

    def buffer(
        self, slot: int, offset: int, nbytes: int, shape: list[int], dtype: int = 10, generation: int = 0
    ) -> None:
        """Write an entry of the buffer table."""
        padded = [*shape, *[0] * (8 - len(shape))]
        entry = struct.pack("<IiiIQQ8q", generation, dtype, len(shape), 0, offset, nbytes, *padded)
        self.put(LAYOUT["table_offset"] + slot * LAYOUT["buffer_entry_nbytes"], entry)

    def task(self, kernel: int, refs: list[tuple[int, int, int]], arguments: bytes = b"") -> bytes:
        """Make the next descriptor; refs are (slot, generation, access)."""
        header = HEADER.pack(kernel, len(arguments), len(refs), 0, self.tail + 1, 0, 0, 0, 0, 0)
        return header + b"".join(REFERENCE.pack(*ref, 0) for ref in refs) + arguments

    def submit(self, descriptor: bytes) -> int:
        """Put a descriptor into the next place of the ring and ring the doorbell; its sequence number."""
        at, word = self._next_slot(), LAYOUT["task_sequence"]
        self.put(at, descriptor[:word])
        self.put(at + word + 8, descriptor[word + 8 :])
        self.publish(int.from_bytes(descriptor[word : word + 8], "little"))
        self.tail += 1
        return self.tail

    def publish(self, sequence: int) -> None:
        """Say which task is in the next place of the ring and wake the server."""
        at = self._next_slot() + LAYOUT["task_sequence"]
        self.bytes[at : at + 8].view("<u8")[0] = sequence
        self.ring()

    def _next_slot(self) -> int:
        at = self.region + slots_in_queue(self.capacity)
        return int(at + self.tail % self.capacity * LAYOUT["task_slot_nbytes"])

    def ring(self) -> None:
        """Ring the doorbell."""
        at = LAYOUT["doorbell"]
        word = self.bytes[at : at + 4].view("<u4")
        word += 1
        ctypes.CDLL(None).syscall(SYS_FUTEX, ctypes.c_void_p(word.ctypes.data), FUTEX_WAKE, 2**31 - 1)

    def completed(self) -> int:
        """How many tasks of the queue are complete."""
        at = self.region + LAYOUT["queue_completed"]
        return int(self.bytes[at : at + 8].view("<u8")[0])

    def outcome(self, sequence: int) -> tuple[int, str]:
        """Status and error text of a complete task."""
        at = self.region + LAYOUT["completions_in_queue"]
        at += (sequence - 1) % self.capacity * LAYOUT["completion_nbytes"]
        number, status, error = struct.unpack("<QiI", self.bytes[at : at + 16].tobytes())
        assert number == sequence
        if error == 2**32 - 1:
            return status, ""
        at = self.region + LAYOUT["errors_in_queue"] + error * LAYOUT["error_slot_nbytes"]
        nbytes = int(self.bytes[at + 8 : at + 12].view("<u4")[0])
        return status, self.bytes[at + 12 : at + 12 + nbytes].tobytes().decode()

    def close(self) -> None:
        """Close connection and memory."""
        self.socket.close()
        self.bytes = np.empty(0, np.uint8)
        if self.memory is not None:
            self.memory.close()
            self.memory = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
