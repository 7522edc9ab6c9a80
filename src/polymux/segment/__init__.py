"""Tasks, buffers and rings in shared memory: the Python face of the C++ core.

`Segment`, `NativeTable`, `Worker` and `TaskRecord` are the server's side, `Client`, `Queue`, `Buffer` and `Task` the
application's (subclassed by `polymux.client`); `Allocator` is the segment's allocator on its own, for tests.
"""

from polymux.segment._core import (
    LAYOUT_VERSION,
    PROTOCOL_VERSION,
    Allocator,
    Buffer,
    Client,
    NativeTable,
    Queue,
    Segment,
    SegmentError,
    Task,
    TaskRecord,
    Worker,
    call_native,
    cycles,
    default_socket_path,
    layout,
    now_ns,
    queue_nbytes,
    slots_in_queue,
)

__all__ = [
    "LAYOUT_VERSION",
    "PROTOCOL_VERSION",
    "Allocator",
    "Buffer",
    "Client",
    "NativeTable",
    "Queue",
    "Segment",
    "SegmentError",
    "Task",
    "TaskRecord",
    "Worker",
    "call_native",
    "cycles",
    "default_socket_path",
    "layout",
    "now_ns",
    "queue_nbytes",
    "slots_in_queue",
]
