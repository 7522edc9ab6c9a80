"""Where the metrics endpoint listens: ``[HOST:]PORT``."""

from __future__ import annotations

from typing import NamedTuple

LOOPBACK = "127.0.0.1"


class Address(NamedTuple):
    """A host, by name or address of IPv4 or IPv6, and a port; port 0: any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Read ``PORT``, ``HOST:PORT`` or ``[ADDRESS]:PORT``; without a host it is `LOOPBACK`.

    Raises
    ------
    ValueError
        Says what would be right.
    """
    host, colon, port = text.rpartition(":")
    remedy = f"{text!r} is no address; give [HOST:]PORT, for example 9464 or 127.0.0.1:9464"
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535):
        raise ValueError(f"{remedy}, with a port from 0 to 65535")
    if not colon:
        return Address(LOOPBACK, int(port))
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{remedy}; an IPv6 address goes into brackets, [::1]:9464")
    if not host:
        raise ValueError(f"{remedy}; 0.0.0.0 stands for all addresses of this machine")
    return Address(host, int(port))
