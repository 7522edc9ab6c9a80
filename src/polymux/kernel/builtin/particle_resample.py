"""particle_resample: particles are drawn again by weight, systematically.

Of all weights laid end to end, W together, particle i of `count` new ones is the one at
``i floor(W / count) + floor(i (W mod count) / count) + phase floor(W / count) / 2^32``: evenly spaced, from a random
beginning. All of it in whole numbers.

References
----------
G. Kitagawa, "Monte Carlo filter and smoother for non-Gaussian nonlinear state space models", Journal of Computational
and Graphical Statistics 5 (1996), appendix.
"""

from __future__ import annotations

from collections.abc import Sequence

from polymux.core.dtype import DType
from polymux.core.errors import InvalidRequest
from polymux.core.implementation import OpenCLSource
from polymux.core.kernel_spec import BufferParam, KernelSpec, ScalarParam
from polymux.core.opencl_plan import OpenCLPlan
from polymux.core.task_view import BufferView
from polymux.kernel.builtin import operands as check
from polymux.kernel.builtin.native import native
from polymux.kernel.builtin.opencl import bits_option, launch, long, pointers, ulong
from polymux.kernel.definition import Definition

SPEC = KernelSpec(
    "particle_resample",
    inputs=(BufferParam("particles", check.FLOATS), BufferParam("cumulative", (DType.U64,))),
    outputs=(BufferParam("particles_out", check.FLOATS),),
    scalars=(
        ScalarParam("phase", DType.U32, 1 << 31),
        *(ScalarParam(name, DType.U64, 0) for name in ("first", "count", "before", "total")),
    ),
    idempotent=True,
    doc="Systematic resampling: particles_out (fields, m) are columns of particles (fields, n), each as often as its"
    " share of the running sums of the weights tells; they begin at phase / 2^32 of the space between two. For a part"
    " of all particles: `before` is the weight before it, `total` that of all (0: the last of cumulative), `first` the"
    " number of its first new particle among `count` (0: m). The same bits on every device.",
)
_OUTPUTS = 32
SOURCE = (
    f"#define OUTPUTS {_OUTPUTS}\n"
    + """
// The first element that is greater than a value, in [from, to]; to where there is none.
static long above(__global const ulong *cumulative, long from, long to, ulong value) {
  while (from < to) {
    const long middle = from + (to - from) / 2;
    if (cumulative[middle] > value) to = middle;
    else from = middle + 1;
  }
  return from;
}

__kernel void particle_resample(__global const T *particles, __global const ulong *cumulative, __global T *out,
                                long fields, long n, long m, ulong phase, ulong first, ulong count, ulong before,
                                ulong given) {
  const long begin = get_global_id(0) * OUTPUTS, end = min(begin + OUTPUTS, m);
  if (begin >= m) return;
  const ulong total = given != 0 ? given : cumulative[n - 1];
  const ulong step = total / count, rest = total % count, number = first + begin;
  ulong position = number * step + number * rest / count + (step >> 32) * phase + ((step & 0xFFFFFFFFul) * phase >> 32);
  ulong remainder = number * rest % count;
  long source = -1;
  for (long i = begin; i < end; ++i) {
    const ulong wanted = position > before ? position - before : 0;
    if (source < 0) source = above(cumulative, 0, n - 1, wanted);
    for (int tries = 0; tries < 8 && source < n - 1 && cumulative[source] <= wanted; ++tries) ++source;
    if (cumulative[source] <= wanted) source = above(cumulative, source, n - 1, wanted);
    for (long f = 0; f < fields; ++f) out[f * m + i] = particles[f * n + source];
    position += step;
    remainder += rest;
    if (remainder >= count) {
      remainder -= count;
      ++position;
    }
  }
}
"""
)


def positions(total: int, count: int, phase: int, number: int) -> int:
    """Where new particle `number` of `count` is in the weights laid end to end."""
    step, rest = divmod(total, count)
    return number * step + number * rest // count + (step >> 32) * phase + ((step & 0xFFFFFFFF) * phase >> 32)


def first_at(total: int, count: int, phase: int, weight: int) -> int:
    """Find the first of `count` new particles whose position is not before `weight`; `count` where there is none."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if positions(total, count, phase, middle) >= weight:
            high = middle
        else:
            low = middle + 1
    return low


def plan(spec: KernelSpec, buffers: Sequence[BufferView], scalars: check.Scalars) -> OpenCLPlan:
    """One work-item per 32 new particles."""
    arrays = check.named(spec, buffers)
    check.require_rank(arrays, "particles", 2, "(fields, particles)")
    check.require_rank(arrays, "particles_out", 2, "(fields, particles)")
    (fields, n), m = arrays["particles"].shape, arrays["particles_out"].shape[1]
    check.require_shape(arrays, "cumulative", (n,), "one for each particle")
    check.require_shape(arrays, "particles_out", (fields, m), "the fields of particles")
    if arrays["particles_out"].dtype != arrays["particles"].dtype:
        check.require_same_dtypes({name: arrays[name] for name in ("particles", "particles_out")})
    check.require_apart(arrays, "particles_out", "particles", "cumulative")
    first, count, before, total = (int(scalars[name]) for name in ("first", "count", "before", "total"))
    count = count or m
    if n == 0 and m > 0:
        raise InvalidRequest(f"particles has shape {(fields, n)}: there is none to draw {m} from")
    if count >= 1 << 32 or first + m > count:
        raise InvalidRequest(
            f"first is {first} and count {count}, expected room for {m} among less than 2^32 new particles"
        )
    if total >= 1 << 63:
        raise InvalidRequest(f"total is {total}, expected less than 2^63")
    if fields * m == 0:
        return OpenCLPlan()
    numbers = [int(scalars["phase"]), first, count, before, total]
    arguments = [*pointers(3), long(fields), long(n), long(m), *(ulong(number) for number in numbers)]
    launched = launch("particle_resample", arguments, (-(-m // _OUTPUTS),), (16,))
    return OpenCLPlan((launched,), (bits_option(arrays["particles"].dtype),))


KERNEL = Definition(SPEC, (native("particle_resample"), OpenCLSource(SOURCE, plan)))
