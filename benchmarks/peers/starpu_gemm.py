"""Runs StarPU's own GEMM example beside polymux.matmul on the same two cores.

python benchmarks/peers/starpu_gemm.py --size 1024 --size 2048

Needs StarPU with its examples (Debian: starpu-examples, and libopenblas0-pthread for its BLAS). StarPU has one worker
on each of two cores; Polymux computes through BLAS on the first and, where there is a driver, OpenCL on the second one.
Both take turns; medians of the rounds count. Says where StarPU is not there.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np

from polymux.bench.coexec.machine import pairs, serving
from polymux.bench.coexec.shapes import product
from polymux.client import Client
from polymux.coexec import Session
from polymux.profiles import ProfileStore
from polymux.profiling.coexec.calibrate import calibrate
from polymux.profiling.coexec.records import CalibrationOptions

FOLDERS = (
    "/usr/lib/x86_64-linux-gnu/starpu/examples",
    "/usr/lib/aarch64-linux-gnu/starpu/examples",
    "/usr/lib/starpu/examples",
)
STRIPS = (2, 4, 8, 16)
ITERATIONS = 5


def find_example() -> Path | None:
    for folder in FOLDERS:
        path = Path(folder) / "sgemm"
        if path.exists():
            return path
    return None


def starpu_gflops(example: Path, size: int, strips: int) -> float:
    """Run the example once with a grid of strips; its own figure, in GFLOP/s."""
    words = [str(example), "-x", str(size), "-y", str(size), "-z", str(size)]
    words += ["-nblocksx", str(strips), "-nblocksy", str(strips), "-iter", str(ITERATIONS)]
    environment = os.environ | {
        "STARPU_NCPU": "2",
        "STARPU_NOPENCL": "0",
        "STARPU_NCUDA": "0",
        "STARPU_SCHED": "dmdas",
        "STARPU_CALIBRATE": "1",
        "STARPU_SILENT": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=300)
    numbers = re.findall(r"[\d.]+", (done.stdout.strip().splitlines() or [""])[-1])
    if done.returncode or len(numbers) < 5:
        raise SystemExit(
            f"StarPU's example failed ({done.returncode}): {(done.stderr or done.stdout)[-500:]}"
        )
    return float(numbers[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, action="append", default=[])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    example = find_example()
    if example is None:
        print("StarPU's examples are not installed (Debian: apt install starpu-examples)", file=sys.stderr)
        return 1
    rows = []
    with tempfile.TemporaryDirectory() as folder, serving() as server:
        with Client(server.socket, name="peer", segment_nbytes=4 << 30) as client:
            store = Path(folder) / "profiles.db"
            with ProfileStore(store, write=True) as opened:
                for _ in calibrate(client, opened, CalibrationOptions(), pids=[server.pid]):
                    pass
            with Session(client, store=store) as session:
                for size in options.size or (1024, 2048):
                    rows.append(compare(session, example, size, options.rounds))
    if options.json:
        print(json.dumps(rows))
        return 0
    for row in rows:
        print(
            f"{row['size']:>5}: StarPU {row['starpu_gflops']:,.0f} GFLOP/s ({row['strips']} strips a side), Polymux"
            f" {row['polymux_gflops']:,.0f} GFLOP/s ({row['devices']})"
        )
    return 0


def compare(session: Session, example: Path, size: int, rounds: int) -> dict[str, object]:
    case = product(size, size, size)
    pair = pairs(session, case.operation)[0]
    arrays = case.arrays(session)
    out = (session.empty((size, size), np.float32),)
    theirs: dict[int, list[float]] = {strips: [] for strips in STRIPS}
    ours = []
    for _ in range(rounds):
        for strips, its in theirs.items():
            its.append(starpu_gflops(example, size, strips))
        times = []
        for _ in range(ITERATIONS):
            begun = perf_counter()
            session.run(case.operation, *arrays, out=out, devices=pair.units)
            times.append(perf_counter() - begun)
        ours.append(case.work / median(times) / 1e9)
    best = max(theirs, key=lambda strips: median(theirs[strips]))
    return {
        "size": size,
        "starpu_gflops": median(theirs[best]),
        "strips": best,
        "polymux_gflops": median(ours),
        "devices": pair.name,
    }


if __name__ == "__main__":
    sys.exit(main())
