"""particle_cumulate: weights from their logarithms and summed up, in whole numbers.

The weight of a particle is ``exp(log_weight - peak) 2^30``, rounded down; ``peak`` is the largest logarithm of all
particles, so that nothing overflows and not all become 0. Sums of whole numbers do not depend on their order: however
the particles are divided among tasks and devices, they are the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from polymux.core.dtype import DType
from polymux.core.implementation import OpenCLSource
from polymux.core.kernel_spec import BufferParam, KernelSpec
from polymux.core.opencl_plan import LocalArgument, OpenCLPlan, ScratchArgument
from polymux.core.task_view import BufferView
from polymux.kernel.builtin import operands as check
from polymux.kernel.builtin.native import native
from polymux.kernel.builtin.opencl import EXACT, launch, long, pointers
from polymux.kernel.builtin.pair_forces import EXPONENTIAL
from polymux.kernel.definition import Definition

SPEC = KernelSpec(
    "particle_cumulate",
    inputs=(BufferParam("log_weights", (DType.F32,)), BufferParam("peak", (DType.F32,))),
    outputs=(BufferParam("cumulative", (DType.U64,)), BufferParam("total", (DType.U64,))),
    idempotent=True,
    doc="Running sums of weights exp(log_weights - peak) 2^30, rounded down to whole numbers, and the last of them;"
    " peak (one element) is the largest logarithm of all particles. What is above it counts as the peak, what is no"
    " number as 0. The same bits on every device.",
)
BLOCK = 256
SOURCE = (
    EXACT
    + EXPONENTIAL
    + f"#define BLOCK {BLOCK}\n"
    + """
typedef float REAL;
typedef int BITS;
#define AS_REAL(bits) as_float(bits)
#define AS_BITS(x) as_int(x)
#define SPLAT(c) (c)

static inline __attribute__((always_inline)) ulong weight(float log_weight, float peak) {
  const float difference = log_weight - peak;
  const float exponent = difference >= -87.0f ? (difference < 0.0f ? difference : 0.0f) : -100.0f;
  float result;
  EXP_F4(exponent, result)
  return (ulong)(int)(result * 1073741824.0f);
}

// The sum of each block.
__kernel void block_sums(__global const float *log_weights, __global const float *peak, __global ulong *sums, long n) {
  const long begin = get_global_id(0) * BLOCK, end = min(begin + BLOCK, n);
  if (begin >= n) return;
  ulong sum = 0;
  for (long i = begin; i < end; ++i) sum += weight(log_weights[i], peak[0]);
  sums[get_global_id(0)] = sum;
}

// What comes before each block, and the sum of all: one work-group, whose work-items have a part of the blocks each.
__kernel void before_blocks(__global ulong *sums, __global ulong *total, __local ulong *parts, long blocks) {
  const long item = get_local_id(0), items = get_local_size(0);
  const long begin = blocks * item / items, end = blocks * (item + 1) / items;
  ulong sum = 0;
  for (long b = begin; b < end; ++b) sum += sums[b];
  parts[item] = sum;
  barrier(CLK_LOCAL_MEM_FENCE);
  ulong before = 0;
  for (long i = 0; i < item; ++i) before += parts[i];
  for (long b = begin; b < end; ++b) {
    const ulong own = sums[b];
    sums[b] = before;
    before += own;
  }
  if (item == items - 1) total[0] = before;
}

__kernel void running_sums(__global const float *log_weights, __global const float *peak, __global const ulong *sums,
                           __global ulong *cumulative, long n) {
  const long begin = get_global_id(0) * BLOCK, end = min(begin + BLOCK, n);
  if (begin >= n) return;
  ulong sum = sums[get_global_id(0)];
  for (long i = begin; i < end; ++i) {
    sum += weight(log_weights[i], peak[0]);
    cumulative[i] = sum;
  }
}
"""
)
_ITEMS = 64


def plan(spec: KernelSpec, buffers: Sequence[BufferView], _: check.Scalars) -> OpenCLPlan:
    """One work-item per block of 256 particles; between the two passes one group sums up the blocks."""
    arrays = check.named(spec, buffers)
    check.require_rank(arrays, "log_weights", 1, "(particles,)")
    (n,) = arrays["log_weights"].shape
    check.require_shape(arrays, "cumulative", (n,), "one for each particle")
    check.require_shape(arrays, "peak", (1,), "one number")
    check.require_shape(arrays, "total", (1,), "one number")
    check.require_apart(arrays, "cumulative", "log_weights", "peak", "total")
    check.require_apart(arrays, "total", "log_weights", "peak")
    blocks = -(-n // BLOCK)
    log_weights, peak, cumulative, total = pointers(4)
    sums = ScratchArgument(0)
    launches = [
        launch("before_blocks", [sums, total, LocalArgument(8 * _ITEMS), long(blocks)], (_ITEMS,), (_ITEMS,))
    ]
    if n:
        first = launch("block_sums", [log_weights, peak, sums, long(n)], (blocks,), (16,))
        last = launch("running_sums", [log_weights, peak, sums, cumulative, long(n)], (blocks,), (16,))
        launches = [first, *launches, last]
    return OpenCLPlan(tuple(launches), scratch_nbytes=(8 * max(blocks, 1),))


KERNEL = Definition(SPEC, (native("particle_cumulate"), OpenCLSource(SOURCE, plan)))
