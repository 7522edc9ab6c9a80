"""What it costs that a served model is cut: requests for the whole and for its parts take turns on one server.

    python benchmarks/served_parts.py --model resnet50 --cores 1 2 --rounds 60

Starts a server of its own for each number of cores, and is its only application: one request at a time, as the front
end makes it (`polymux.serving.kernel_runner`), without HTTP. Prints JSON; keep the machine idle meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import numpy as np

import polymux
from polymux.client import Client
from polymux.core.dtype import DType
from polymux.core.errors import NoServer
from polymux.core.implementation import OnnxModel
from polymux.onnxgraph.file import load_model
from polymux.onnxgraph.inputs import batch_of, item_inputs
from polymux.onnxgraph.partition.choose import Wish
from polymux.onnxgraph.partition.partition import Partition, partition
from polymux.profiling.samples import SAMPLES, write_sample
from polymux.serving.kernel_runner import KernelRunner

TARGET = 0.03
"""What the cuts may add, as a part of the time of the whole."""


def main() -> None:
    """Read the command line, measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="resnet50", choices=SAMPLES)
    parser.add_argument("--parts", type=int, help="so many instead of the default cut")
    parser.add_argument("--cores", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = write_sample(options.model, folder / "model.onnx")
        inputs = item_inputs(str(path), load_model(path))
        arrays = batch_of(inputs, 1, np.random.default_rng(0))
        for cores in options.cores:
            parts = folder / f"parts-{cores}"
            parts.mkdir()
            found = partition(path, inputs, Wish(parts=options.parts), parts, threads=cores)
            if found.why_whole:
                raise SystemExit(f"{options.model} runs whole: {found.why_whole}")
            result = measure(path, found, arrays, cores, options.rounds, folder)
            results.append({"model": options.model, "cores": cores, "parts": len(found.parts), **result})
    print(json.dumps({"target": TARGET, "results": results}, indent=2))


def measure(
    path: Path, found: Partition, arrays: dict[str, Any], cores: int, rounds: int, folder: Path
) -> dict[str, float]:
    """Serve both on so many cores; times in ms, and what the cuts add as a part of the whole.

    Where other programs run, the first deciles (``added_undisturbed``) tell more than the medians.
    """
    socket = folder / f"{cores}.sock"
    device = f"cpu:0-{cores - 1},memory=host,streams=1" if cores > 1 else "cpu:0,memory=host"
    command = [sys.executable, "-m", "polymux.cli", "up", "--socket", str(socket), "--device", device]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        with connected(socket) as client:
            whole, chain = runners(client, path, found)
            took = asyncio.run(take_turns(whole, chain, arrays, rounds))
            whole.close()
            chain.close()
    finally:
        server.terminate()
        server.wait(30)
    whole_ns, parts_ns = ([alone for alone, _ in took], [parts for _, parts in took])
    return {
        "whole_ms": median(whole_ns) / 1e6,
        "parts_ms": median(parts_ns) / 1e6,
        "added": median(parts / alone - 1 for alone, parts in took),
        "added_undisturbed": quantiles(parts_ns, n=10)[0] / quantiles(whole_ns, n=10)[0] - 1,
    }


def connected(socket: Path) -> Client:
    """Connect as soon as the server is there."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return polymux.connect(str(socket), start=False)
        except NoServer:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def runners(client: Client, path: Path, found: Partition) -> tuple[KernelRunner, KernelRunner]:
    """Register the model and its parts."""
    spec = client.register(None, OnnxModel(str(path)), name="whole", isolate=False)
    parts = [
        client.register(None, OnnxModel(str(part.path), optimized=True), name=f"part-{at}", isolate=False)
        for at, part in enumerate(found.parts)
    ]
    return KernelRunner(client, spec), KernelRunner(client, spec, parts=parts)


async def take_turns(
    whole: KernelRunner, chain: KernelRunner, arrays: dict[str, Any], rounds: int
) -> list[tuple[int, int]]:
    """Send requests by turns, the first ones for nothing."""
    took = []
    for number in range(rounds + 5):
        pair = [0, 0]
        for at in (0, 1) if number % 2 else (1, 0):
            pair[at] = await request((whole, chain)[at], arrays)
        if number >= 5:
            took.append((pair[0], pair[1]))
    return took


async def request(runner: KernelRunner, arrays: dict[str, Any]) -> int:
    """Run one request; its time in ns."""
    given = []
    for array in arrays.values():
        given.append(runner.allocate(array.shape, DType.from_numpy(array.dtype)))
        given[-1].numpy()[...] = array
    start = time.perf_counter_ns()
    outputs = await runner.run(given)
    took = time.perf_counter_ns() - start
    for buffer in (*given, *outputs):
        buffer.close()
    return took


if __name__ == "__main__":
    main()
