"""A native kernel is told the cores of its share only if it says that it uses them, also on the way without Python."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from polymux.device.cores import allowed_cores
from tests.segment.server_process import ServerProcess

ROOT = Path(__file__).resolve().parents[2]
COMPILER = shutil.which("gcc") or shutil.which("cc")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")

SOURCE = """
#include <polymux.h>
uint32_t polymux_kernel_library_abi(void) { return POLYMUX_KERNEL_ABI; }
POLYMUX_API int told(polymux_kernel_call *call) { *(int32_t *)call->buffers[0].data = call->threads; return 0; }
"""
KERNELS = "".join(
    f"""
[[kernel]]
name = "{name}"
outputs = [{{name = "count", dtypes = ["i4"]}}]
[kernel.native]
library = "libtold.so"
symbol = "told"
threads = {threads}
"""
    for name, threads in (("uses_threads", "true"), ("uses_none", "false"))
)


@pytest.mark.parametrize(("kernel", "all_cores"), [("uses_threads", True), ("uses_none", False)])
def test_a_kernel_is_told_what_it_says_that_it_uses(tmp_path: Path, kernel: str, all_cores: bool) -> None:
    (tmp_path / "told.c").write_text(SOURCE)
    (tmp_path / "told.toml").write_text(KERNELS)
    words = [str(COMPILER), "-shared", "-fPIC", f"-I{ROOT / 'include'}", "told.c", "-o", "libtold.so"]
    subprocess.run(words, check=True, cwd=tmp_path)
    with ServerProcess(tmp_path, "--device", "cpu", "--kernels", str(tmp_path / "told.toml")) as server:
        with server.connect("counts") as client:
            queue = client.queue()
            count = queue.zeros(1, "i4")
            queue.submit(kernel, [], [count]).wait(30)
            assert count.numpy()[0] == (len(allowed_cores()) if all_cores else 1)
        streams = [stream for device in server.status()["devices"] for stream in device["streams"]]
        assert sum(stream["native_tasks"] for stream in streams) == 1
