"""Polymux: many applications share a machine's accelerators without knowing them.

``polymux.connect()`` joins the running server, or starts the same runtime inside this process; see `connect`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from polymux import compiled  # noqa: F401 - first: it has compiled modules found from here on
from polymux.client import Buffer, Client, Lease, Queue, Task
from polymux.core.errors import NoServer, PolymuxError
from polymux.segment import default_socket_path

if TYPE_CHECKING:
    from polymux import coexec
    from polymux.coexec.functions import conv2d, matmul

__version__ = "0.1.0"
__all__ = [
    "Buffer",
    "Client",
    "Lease",
    "PolymuxError",
    "Queue",
    "Task",
    "coexec",
    "connect",
    "conv2d",
    "default_socket_path",
    "matmul",
]


def __getattr__(name: str) -> Any:
    """Load co-execution when it is first used: whoever only submits tasks needs none of its models."""
    if name not in ("coexec", "conv2d", "matmul"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module = import_module("polymux.coexec")
    found = module if name == "coexec" else getattr(module, name)
    globals()[name] = found
    return found


def connect(
    socket: str | None = None,
    *,
    name: str | None = None,
    segment_nbytes: int | None = None,
    weight: float = 1.0,
    start: bool | None = None,
    devices: Sequence[str] = (),
) -> Client:
    """Connect this application to the accelerators of the machine.

    Parameters
    ----------
    socket : str, optional
        Path of the server's socket; ``$POLYMUX_SOCKET``, else this user's default, if None.
    name : str, optional
        Shown to the operator; the program's name by default.
    segment_nbytes : int, optional
        Size of the memory shared with the server, in bytes; the server's default if None. Pages are taken as they are
        touched.
    weight : float
        What this application gets of a busy stream against others of the same priority, as a multiple of a normal
        one: 0.01 to 100.
    start : bool, optional
        Whether to start the runtime inside this process: None when no server listens and no socket was named, True
        always, False never.
    devices : sequence of str
        What a runtime that is started inside this process opens, as ``polymux up --device`` takes it; by default all
        that there is.

    Returns
    -------
    Client

    Raises
    ------
    NoServer
        When no server listens and none may be started here.
    ProtocolMismatch, PermissionDenied
        When the server cannot or will not talk to this application.
    InvalidRequest
        For a weight out of range.
    """
    if start is not True:
        try:
            return Client(socket, name=name, segment_nbytes=segment_nbytes, weight=weight)
        except NoServer:
            if start is False or socket is not None:
                raise
    from polymux.server.runtime import start_inside  # only now: it loads devices and kernels

    fd, stop = start_inside(devices)
    return Client(fd=fd, name=name, segment_nbytes=segment_nbytes, weight=weight, on_close=stop)
