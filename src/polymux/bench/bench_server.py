"""A server of the benchmark's own: ``polymux up`` in another process, on a private socket."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import polymux
from polymux.bench.cores import Cores
from polymux.core.errors import NoServer, PolymuxError

KERNEL_LIBRARY = Path(polymux.__file__).resolve().parent / "lib" / "libpolymux_bench_kernels.so"
KERNELS = (Path(__file__).with_name("native_kernels.toml"), Path(__file__).with_name("python_kernels.py"))
START_TIMEOUT_S = 60.0


def device_on(cores: Cores) -> str:
    """Name the device that works on host memory with the server's core alone."""
    return f"cpu:{cores.server}-{cores.server},memory=host,streams=1" if cores.pinned else "cpu"


class BenchServer:
    """Runs a server with the benchmark's kernels as long as the ``with`` block lasts.

    Parameters
    ----------
    devices : sequence of str
        As ``polymux up --device`` takes them.
    arguments : str
        Further ones of ``polymux up``: ``"--policy", "elastic"``.

    Attributes
    ----------
    socket : str
        Path of its socket.
    pid : int
        Of the server process.
    """

    socket: str
    pid: int

    def __init__(self, devices: Sequence[str], *arguments: str) -> None:
        self._arguments = [word for device in devices for word in ("--device", device)] + [*arguments]

    def __enter__(self) -> BenchServer:
        self._folder = tempfile.TemporaryDirectory(prefix="polymux-bench-")
        self.socket = str(Path(self._folder.name) / "socket")
        self._log = Path(self._folder.name) / "log"
        words = [sys.executable, "-m", "polymux.cli", "up", "--socket", self.socket, *self._arguments]
        for kernels in KERNELS:
            words += ["--kernels", str(kernels)]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.pid = self._process.pid
        try:
            self._wait_until_up()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def rss_nbytes(self) -> int:
        """Return the server's resident memory in bytes."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise PolymuxError(f"the benchmark's server (process {self.pid}) has ended")

    def _wait_until_up(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            try:
                polymux.connect(self.socket, start=False).close()
            except NoServer:
                time.sleep(0.02)
            else:
                return
        raise PolymuxError(f"the benchmark's server did not start: {self._log.read_text()[-2000:].strip()}")

    def _stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()
