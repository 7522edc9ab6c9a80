"""Smooths an image with a large window on all devices at once: an operation that Polymux has never seen.

python smooth.py
python smooth.py --draw split.png        needs matplotlib (pip install 'polymux[plan]')
"""

from __future__ import annotations

import argparse

import numpy as np

import polymux
from polymux.coexec import ChunkKernel, Operation, Session
from polymux.core.dtype import DType
from polymux.core.errors import InvalidRequest
from polymux.kernel import BufferParam, KernelSpec, OpenCLRange, OpenCLSource, PythonFunction, ScalarParam

FLOAT = (DType.F32,)
SPEC = KernelSpec(
    "smooth_rows",
    inputs=(BufferParam("image", FLOAT), BufferParam("taps", FLOAT)),
    outputs=(BufferParam("out", FLOAT),),
    scalars=(ScalarParam("first", DType.I64), ScalarParam("count", DType.I64)),
    idempotent=True,
)


def smooth_rows(image, taps, out, first, count):
    """Compute rows first to first + count of out, and nothing else."""
    radius, columns = len(taps) // 2, image.shape[1]
    near = np.clip(np.arange(first - radius, first + count + radius), 0, len(image) - 1)
    block = np.pad(image[near], ((0, 0), (radius, radius)), mode="edge")
    rows = out[first : first + count]
    rows[...] = 0
    for dy, row in enumerate(taps):
        for dx, tap in enumerate(row):
            rows += tap * block[dy : dy + count, dx : dx + columns]


SOURCE = """
__kernel void smooth_rows(__global const float *image, __global const float *taps, __global float *out,
                          long first, long count, long rows, long columns, long window) {
  const long x = get_global_id(0), y = first + get_global_id(1), radius = window / 2;
  float sum = 0;
  for (long dy = 0; dy < window; ++dy)
    for (long dx = 0; dx < window; ++dx)
      sum += taps[dy * window + dx] * image[clamp(y + dy - radius, 0L, rows - 1) * columns
                                            + clamp(x + dx - radius, 0L, columns - 1)];
  out[y * columns + x] = sum;
}
"""
ARGUMENTS = ("first", "count", "image.shape[0]", "image.shape[1]", "taps.shape[0]")
OPENCL = OpenCLSource(SOURCE, OpenCLRange("smooth_rows", ("image.shape[1]", "count"), arguments=ARGUMENTS))


class Smooth(Operation):
    """Weighted means over a window of each element of an image; elements beyond an edge are those at the edge."""

    name = "smooth"
    kernels = (ChunkKernel("smooth_rows", spec=SPEC, implementations=(PythonFunction(smooth_rows), OPENCL)),)

    def outputs(self, image, taps):
        if image.ndim != 2 or taps.ndim != 2 or taps.shape[0] != taps.shape[1] or len(taps) % 2 == 0:
            raise InvalidRequest(
                f"smooth of {image.shape} by {taps.shape}: give an image and an odd square window"
            )
        return [(image.shape, image.dtype)]

    def ways(self, image, taps):
        (rows, columns), window = image.shape, len(taps)
        work = 2.0 * rows * columns * window**2
        sizes, axes = (rows, columns, window), (0, None)
        return [self.along(image, taps, sizes=sizes, axis=0, work=work, input_axes=axes, halo=window // 2)]


def main() -> None:
    parser = argparse.ArgumentParser(description="smooth an image on all devices at once")
    parser.add_argument("--device", action="append", default=[], help="as polymux up takes it")
    parser.add_argument("--size", type=int, default=1024, help="rows and columns of the image")
    parser.add_argument("--draw", metavar="FILE", help="draw which device computed what when")
    options = parser.parse_args()
    image = np.random.default_rng(1).random((options.size, options.size), np.float32)
    taps = np.full((9, 9), 1 / 81, np.float32)
    with (
        polymux.connect(start=bool(options.device) or None, devices=options.device) as client,
        Session(client) as session,
    ):
        for _ in range(4):
            (result,) = session.run(Smooth(), image, taps)
        units = ", ".join(sorted({run.unit for run in session.last.runs}))
        print(f"{result.shape} in {session.last.run_s * 1e3:.1f} ms on {units}")
        if options.draw:
            session.last.draw(options.draw)


if __name__ == "__main__":
    main()
