"""particle_predict: particles move and are weighed by an observation, two steps of the bootstrap filter.

A particle has a position and a velocity, in pixels from the middle of an image and per step. With four normal numbers
(block `first` + i of Philox4x32-10, as random_normal makes them)::

    x' = x + vx + position_noise n0     vx' = vx + velocity_noise n2
    y' = y + vy + position_noise n1     vy' = vy + velocity_noise n3
    log_weight = gain (image[y', x'] - level)

References
----------
N. J. Gordon, D. J. Salmond, A. F. M. Smith, "Novel approach to nonlinear/non-Gaussian Bayesian state estimation", IEE
Proceedings F 140 (1993).
S. Che et al., "Rodinia: a benchmark suite for heterogeneous computing", IISWC 2009.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from polymux.core.dtype import DType
from polymux.core.errors import InvalidRequest
from polymux.core.implementation import OpenCLSource
from polymux.core.kernel_spec import BufferParam, KernelSpec, ScalarParam
from polymux.core.opencl_plan import OpenCLPlan, ScalarArgument
from polymux.core.task_view import BufferView
from polymux.kernel.builtin import operands as check
from polymux.kernel.builtin import philox
from polymux.kernel.builtin.native import native
from polymux.kernel.builtin.opencl import launch, long, pointers, type_option, ulong
from polymux.kernel.definition import Definition

_FLOAT = (DType.F32,)
_NUMBERS = ("position_noise", "velocity_noise", "gain", "level")
SPEC = KernelSpec(
    "particle_predict",
    inputs=(BufferParam("particles", _FLOAT), BufferParam("image", _FLOAT)),
    outputs=(BufferParam("particles_out", _FLOAT), BufferParam("log_weights", _FLOAT)),
    scalars=(
        ScalarParam("seed", DType.U64),
        ScalarParam("stream", DType.U64, 0),
        ScalarParam("first", DType.U64, 0),
        *(ScalarParam(name, DType.F64) for name in _NUMBERS),
    ),
    idempotent=True,
    doc="Particles (4, n: x, y, and velocities, in pixels from the middle of the image) move by their velocity and by"
    " normal noise, which is that of particles first, first + 1, ... of (seed, stream); each gets the logarithm of its"
    " weight, gain * (pixel - level) of the image (height, width) where it is, or next to it beyond an edge: the first"
    " steps of a particle filter. The same bits on every device.",
)
SOURCE = (
    philox.SOURCE
    + """
#define PARTICLES 16  // per work-item: a loop that a compiler for CPUs vectorises

// The pixel at a distance from the middle: the nearest one; 0 for what is no number.
INLINE int pixel(float distance, int extent) {
  const float at = distance + 0.5f * (float)extent, last = (float)(extent - 1);
  const float above = at > 0.0f ? at : 0.0f;
  return (int)(above < last ? above : last);
}

__kernel void particle_predict(__global const float *particles, __global const float *image, __global float *out,
                               __global float *log_weights, long n, int height, int width, ulong seed, ulong stream,
                               ulong first, float position_noise, float velocity_noise, float gain, float level) {
  const long begin = get_global_id(0) * PARTICLES, end = min(begin + PARTICLES, n);
  for (long i = begin; i < end; ++i) {
    const philox_words words = philox4x32_10(first + i, stream, seed);
    const pair_f4 position = normal_f4(words.x, words.y), velocity = normal_f4(words.z, words.w);
    const float vx = particles[2 * n + i], vy = particles[3 * n + i];
    const float x = particles[i] + vx + position_noise * position.first;
    const float y = particles[n + i] + vy + position_noise * position.second;
    out[i] = x;
    out[n + i] = y;
    out[2 * n + i] = vx + velocity_noise * velocity.first;
    out[3 * n + i] = vy + velocity_noise * velocity.second;
    log_weights[i] = gain * (image[(long)pixel(y, height) * width + pixel(x, width)] - level);
  }
}
"""
)


def plan(spec: KernelSpec, buffers: Sequence[BufferView], scalars: check.Scalars) -> OpenCLPlan:
    """One work-item per 16 particles."""
    arrays = check.named(spec, buffers)
    check.require_rank(arrays, "particles", 2, "(4, particles)")
    n = arrays["particles"].shape[1]
    check.require_shape(arrays, "particles", (4, n), "x, y and two velocities")
    shape = arrays["image"].shape
    if (
        len(shape) < 2
        or math.prod(shape[:-2]) != 1
        or not all(0 < extent <= 1 << 20 for extent in shape[-2:])
    ):
        raise InvalidRequest(
            f"image has shape {shape}, expected one image (..., 1 to 2^20 rows, 1 to 2^20 columns)"
        )
    height, width = shape[-2:]
    check.require_shape(arrays, "particles_out", (4, n), "that of particles")
    check.require_shape(arrays, "log_weights", (n,), "one for each particle")
    check.require_apart(arrays, "particles_out", "particles", "image")
    check.require_apart(arrays, "log_weights", "particles", "image", "particles_out")
    for name in _NUMBERS:
        if not math.isfinite(scalars[name]):
            raise InvalidRequest(f"{name} is {scalars[name]}, expected a finite number")
    if n == 0:
        return OpenCLPlan()
    arguments = [
        *pointers(4),
        long(n),
        *(ScalarArgument(DType.I32, extent) for extent in (height, width)),
        *(ulong(int(scalars[name])) for name in ("seed", "stream", "first")),
        *(ScalarArgument(DType.F32, scalars[name]) for name in _NUMBERS),
    ]
    launched = launch("particle_predict", arguments, (-(-n // 16),), (16,))
    return OpenCLPlan((launched,), (type_option(DType.F32),))


KERNEL = Definition(SPEC, (native("particle_predict"), OpenCLSource(SOURCE, plan)))
