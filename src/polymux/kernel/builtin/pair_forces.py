"""pair_forces: what particles in boxes do to each other, lavaMD of the Rodinia benchmarks.

A particle feels those of its own box and of the 26 boxes around it. With d = x_i - x_j and w = q_j exp(-alpha^2 |d|^2),
particle i has the potential ``sum of w`` and the force ``sum of 2 w d``. Rodinia writes the same with |x|^2 / 2 as the
fourth coordinate of a particle: ``exp(-2 alpha^2 (v_i + v_j - x_i . x_j))``.

References
----------
L. G. Szafaryn, T. Gamblin, B. R. de Supinski, K. Skadron, "Experiences with achieving portability across heterogeneous
architectures", WOLFHPC 2011 (lavaMD).
S. Che et al., "Rodinia: a benchmark suite for heterogeneous computing", IISWC 2009.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from polymux.core.dtype import DType
from polymux.core.errors import InvalidRequest
from polymux.core.implementation import OpenCLSource
from polymux.core.kernel_spec import BufferParam, KernelSpec, ScalarParam
from polymux.core.opencl_plan import OpenCLPlan, ScalarArgument
from polymux.core.task_view import BufferView
from polymux.kernel.builtin import operands as check
from polymux.kernel.builtin.native import native
from polymux.kernel.builtin.opencl import EXACT, launch, long, pointers, type_option
from polymux.kernel.definition import Definition

SPEC = KernelSpec(
    "pair_forces",
    inputs=(BufferParam("particles", check.FLOATS),),
    outputs=(BufferParam("forces", check.FLOATS),),
    scalars=(ScalarParam("first", DType.I64, 0), ScalarParam("alpha", DType.F64, 0.5)),
    idempotent=True,
    doc="Potential and force (layers, height, width, particles, 4) of the particles (depth, height, width, particles,"
    " 4: x, y, z, charge) of the boxes in layers first, first + 1, ..., from those of their own and the 26 boxes"
    " around: lavaMD (Rodinia), the sum of q exp(-alpha^2 d^2) and its gradient. The same bits on every device.",
)
EXPONENTIAL = Path(__file__).with_name("exponential.cl").read_text(encoding="utf-8")
SOURCE = (
    EXACT
    + EXPONENTIAL
    + """
#if defined(DOUBLE)
#define WIDTH 8
#define EXPONENTIAL EXP_F8
typedef double8 REAL;
typedef long8 BITS;
#define AS_REAL(bits) as_double8(bits)
#define AS_BITS(x) as_long8(x)
#else
#define WIDTH 16
#define EXPONENTIAL EXP_F4
typedef float16 REAL;
typedef int16 BITS;
#define AS_REAL(bits) as_float16(bits)
#define AS_BITS(x) as_int16(x)
#endif
#define SPLAT(c) ((REAL)(c))
typedef union {
  REAL vector;
  T lane[WIDTH];
} lanes;

// One work-item per WIDTH particles of a box: each lane adds the neighbours in the order in which they lie.
__kernel void pair_forces(__global const T *particles, __global T *forces, long first, long layers, long depth,
                          long height, long width, long n, T decay) {
  const long tiles = (n + WIDTH - 1) / WIDTH, item = get_global_id(0), box = item / tiles;
  if (box >= layers * height * width) return;
  const long begin = item % tiles * WIDTH, used = min((long)WIDTH, n - begin);
  const long at = first * height * width + box;
  const long bz = at / (height * width), by = at / width % height, bx = at % width;
  lanes x, y, z;
  for (int l = 0; l < WIDTH; ++l) {
    __global const T *particle = particles + (at * n + begin + min((long)l, used - 1)) * 4;
    x.lane[l] = particle[0];
    y.lane[l] = particle[1];
    z.lane[l] = particle[2];
  }
  lanes potential, force_x, force_y, force_z;
  potential.vector = force_x.vector = force_y.vector = force_z.vector = SPLAT(0);
  for (long nz = max(bz - 1, 0L); nz <= min(bz + 1, depth - 1); ++nz) {
    for (long ny = max(by - 1, 0L); ny <= min(by + 1, height - 1); ++ny) {
      // boxes that follow each other in x are one run of particles
      const long from = max(bx - 1, 0L), to = min(bx + 1, width - 1) + 1;
      __global const T *other = particles + ((nz * height + ny) * width + from) * n * 4;
      for (long j = 0; j < (to - from) * n; ++j, other += 4) {
        const REAL dx = x.vector - other[0], dy = y.vector - other[1], dz = z.vector - other[2];
        const REAL exponent = (dx * dx + dy * dy + dz * dz) * decay;
        REAL strength;
        EXPONENTIAL(exponent, strength)
        strength = strength * other[3];
        potential.vector += strength;
        force_x.vector += strength * dx;
        force_y.vector += strength * dy;
        force_z.vector += strength * dz;
      }
    }
  }
  for (int l = 0; l < used; ++l) {
    __global T *force = forces + (box * n + begin + l) * 4;
    force[0] = potential.lane[l];
    force[1] = 2 * force_x.lane[l];
    force[2] = 2 * force_y.lane[l];
    force[3] = 2 * force_z.lane[l];
  }
}
"""
)


def plan(spec: KernelSpec, buffers: Sequence[BufferView], scalars: check.Scalars) -> OpenCLPlan:
    """One work-item per vector of particles of a box."""
    arrays = check.named(spec, buffers)
    check.require_rank(arrays, "particles", 5, "(depth, height, width, particles, 4)")
    check.require_rank(arrays, "forces", 5, "(layers, height, width, particles, 4)")
    check.require_same_dtypes(arrays)
    depth, height, width, particles, _ = arrays["particles"].shape
    layers = arrays["forces"].shape[0]
    boxes = (height, width, particles, 4)
    check.require_shape(
        arrays, "forces", (layers, *boxes), "layers of the boxes of particles, and potential and force"
    )
    check.require_shape(arrays, "particles", (depth, *boxes), "x, y, z and charge of each particle")
    check.require_apart(arrays, "forces", "particles")
    first, alpha = int(scalars["first"]), float(scalars["alpha"])
    if not 0 <= first <= depth - layers:
        raise InvalidRequest(
            f"first is {first}, expected 0 to {depth - layers}: forces has {layers} of the {depth} layers of"
            " particles"
        )
    if not alpha * alpha <= 1e30:
        raise InvalidRequest(f"alpha is {alpha}, expected a number of at most 1e15")
    if check.size(arrays["forces"]) == 0:
        return OpenCLPlan()
    dtype = arrays["particles"].dtype
    extents = [long(value) for value in (first, layers, depth, height, width, particles)]
    arguments = [*pointers(2), *extents, ScalarArgument(dtype, -(alpha * alpha))]
    tiles = -(-particles // (64 // dtype.itemsize))
    double = ("-DDOUBLE",) if dtype is DType.F64 else ()
    launched = launch("pair_forces", arguments, (tiles * layers * height * width,), (8,))
    return OpenCLPlan((launched,), (type_option(dtype), *double))


KERNEL = Definition(SPEC, (native("pair_forces"), OpenCLSource(SOURCE, plan)))
