"""A server of the benchmark's own, with the benchmark's kernels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polymux
from polymux.bench.cores import Cores
from polymux.profiling.private_server import PrivateServer

KERNEL_LIBRARY = Path(polymux.__file__).resolve().parent / "lib" / "libpolymux_bench_kernels.so"
KERNELS = (Path(__file__).with_name("native_kernels.toml"), Path(__file__).with_name("python_kernels.py"))


def device_on(cores: Cores) -> str:
    """Name the device that works on host memory with the server's core alone."""
    return f"cpu:{cores.server}-{cores.server},memory=host,streams=1" if cores.pinned else "cpu"


class BenchServer(PrivateServer):
    """Runs a server with the benchmark's kernels as long as the ``with`` block lasts.

    Parameters
    ----------
    devices : sequence of str
        As ``polymux up --device`` takes them.
    arguments : str
        Further ones of ``polymux up``: ``"--policy", "elastic"``.
    """

    def __init__(self, devices: Sequence[str], *arguments: str) -> None:
        kernels = [word for file in KERNELS for word in ("--kernels", str(file))]
        super().__init__(devices, [*arguments, *kernels])
