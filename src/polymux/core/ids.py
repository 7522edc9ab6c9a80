"""Identifiers: plain strings and integers that the type checker keeps apart."""

from __future__ import annotations

from typing import NewType

DeviceId = NewType("DeviceId", str)
"""An accelerator, ``"<api>:<index>"``: ``"cpu:0"``, ``"opencl:0"``, ``"simulated:0"``."""

StreamId = NewType("StreamId", str)
"""A stream of a device, ``"<device>/<index>"``: ``"cpu:0/0"``."""

SessionId = NewType("SessionId", int)
"""One connection of one application; never reused while the server lives."""

QueueId = NewType("QueueId", str)
"""A task queue, ``"<session>.<index>"``: ``"3.0"``. Reused by the session after a close."""

KernelId = NewType("KernelId", int)
"""The number that stands for a kernel's name in a task descriptor; below 16 reserved by the runtime."""

KernelName = NewType("KernelName", str)
"""The name under which the dispatch table holds a kernel's implementations."""


def stream_id(device: DeviceId, index: int) -> StreamId:
    """Name the `index`-th stream of `device`."""
    return StreamId(f"{device}/{index}")


def queue_id(session: SessionId, index: int) -> QueueId:
    """Name the queue that `session` holds at ring `index`."""
    return QueueId(f"{session}.{index}")
