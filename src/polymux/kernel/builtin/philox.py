"""Counter-based random numbers: what random_uniform and random_normal share.

Element i of the output is number ``offset + i`` of the sequence (seed, stream): a function of these three alone, so
tasks that fill parts of one array, in any order and on any devices, give the bits of one task that fills it. Numbers
come from blocks of Philox4x32-10 (``philox.cl``, which also the native version compiles): number n of float32 is word
n % 4 of block n // 4, number n of float64 words 2 (n % 2) and following of block n // 2.

References
----------
J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC'11.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from polymux.core.dtype import DType
from polymux.core.errors import InvalidRequest
from polymux.core.kernel_spec import ScalarParam
from polymux.core.opencl_plan import BufferArgument, OpenCLArgument, OpenCLPlan, ScalarArgument
from polymux.core.task_view import BufferView
from polymux.kernel.builtin.opencl import EXACT, launch, long, type_option, ulong
from polymux.kernel.builtin.operands import Scalars, size

SEQUENCE = (
    ScalarParam("seed", DType.U64),
    ScalarParam("stream", DType.U64, 0),
    ScalarParam("offset", DType.U64, 0),
)
"""Scalars that choose the numbers."""

_BLOCKS = 16
SOURCE = (
    EXACT
    + """
#define INLINE static inline __attribute__((always_inline))
#define SQRT_F8(x) sqrt(x)
#if defined(DOUBLE)
#define HAVE_F8 1
#else
#define HAVE_F8 0
#endif

// The correctly rounded square root in single precision; OpenCL asks for 3 units in the last place only.
#if defined(cl_khr_fp64)
// Rounding the correctly rounded double is harmless (S. A. Figueroa, "When is double rounding innocuous?", 1995).
#define SQRT_F4(x) ((float)sqrt((double)(x)))
#else
// The right neighbour is told by the sign of a residual that fma computes without rounding (P. W. Markstein,
// "Computation of elementary functions on the IBM RISC System/6000 processor", 1990).
INLINE float corrected_sqrt(float x) {
  float root = sqrt(x);
  for (int i = 0; i < 3; ++i) {
    const float below = as_float(as_int(root) - 1);
    root = root > 0.0f && fma(-root, below, x) <= 0.0f ? below : root;
  }
  for (int i = 0; i < 3; ++i) {
    const float above = as_float(as_int(root) + 1);
    root = root > 0.0f && fma(-root, above, x) > 0.0f ? above : root;
  }
  return root;
}
#define SQRT_F4(x) corrected_sqrt(x)
#endif
"""
    + Path(__file__).with_name("philox.cl").read_text(encoding="utf-8")
    + """
#define PER_BLOCK (16 / (int)sizeof(T))
#define BLOCKS 16  // per work-item: loops that a compiler for CPUs vectorises, separate ones since it likes them small
#define WORDS (4 * BLOCKS)
#define NUMBERS (PER_BLOCK * BLOCKS)

#if defined(DOUBLE)
#define UNIFORM(j) number[j] = uniform_f8(word[2 * j], word[2 * j + 1]);
#define NORMAL(j)                                                                                    \\
  const pair_f8 p = normal_f8(word[4 * j], word[4 * j + 1], word[4 * j + 2], word[4 * j + 3]);       \\
  number[2 * j] = p.first;                                                                           \\
  number[2 * j + 1] = p.second;
#else
#define UNIFORM(j) number[j] = uniform_f4(word[j]);
#define NORMAL(j)                                                                                    \\
  const pair_f4 p = normal_f4(word[2 * j], word[2 * j + 1]);                                         \\
  number[2 * j] = p.first;                                                                           \\
  number[2 * j + 1] = p.second;
#endif

// Makes the numbers of its blocks and stores those that belong to y.
#define GENERATOR(name, COUNT, MAKE)                                                                 \\
  __kernel void name(__global T *y, long n, ulong seed, ulong stream, ulong offset, T scale,         \\
                     T shift) {                                                                      \\
    const ulong first = offset / PER_BLOCK + get_global_id(0) * BLOCKS;                              \\
    const long begin = (long)(first * PER_BLOCK - offset); /* below 0 where a block precedes y */    \\
    uint word[WORDS];                                                                                \\
    for (int b = 0; b < BLOCKS; ++b) {                                                               \\
      const philox_words c = philox4x32_10(first + b, stream, seed);                                 \\
      word[4 * b] = c.x;                                                                             \\
      word[4 * b + 1] = c.y;                                                                         \\
      word[4 * b + 2] = c.z;                                                                         \\
      word[4 * b + 3] = c.w;                                                                         \\
    }                                                                                                \\
    T number[NUMBERS];                                                                               \\
    for (int j = 0; j < COUNT; ++j) {                                                                \\
      MAKE(j)                                                                                        \\
    }                                                                                                \\
    if (begin >= 0 && begin + NUMBERS <= n) {                                                        \\
      for (int j = 0; j < NUMBERS; ++j) y[begin + j] = number[j] * scale + shift;                    \\
    } else {                                                                                         \\
      for (int j = 0; j < NUMBERS; ++j) {                                                            \\
        if (begin + j >= 0 && begin + j < n) y[begin + j] = number[j] * scale + shift;               \\
      }                                                                                              \\
    }                                                                                                \\
  }
GENERATOR(random_uniform, NUMBERS, UNIFORM)
GENERATOR(random_normal, NUMBERS / 2, NORMAL)
"""
)


def plan(
    entry: str, arrays: Mapping[str, BufferView], scalars: Scalars, scale: float, shift: float
) -> OpenCLPlan:
    """One work-item per 16 blocks; element = number * scale + shift."""
    y = arrays["y"]
    n, offset = size(y), int(scalars["offset"])
    if offset + n >= 1 << 64:
        raise InvalidRequest(
            f"offset {offset} plus the {n} elements of y leaves the sequence of 2^64 numbers"
        )
    if n == 0:
        return OpenCLPlan()
    per_block = 16 // y.dtype.itemsize
    blocks = (offset + n - 1) // per_block - offset // per_block + 1
    sequence = [ulong(int(scalars[name])) for name in ("seed", "stream", "offset")]
    affine = [ScalarArgument(y.dtype, scale), ScalarArgument(y.dtype, shift)]
    double = ("-DDOUBLE",) if y.dtype is DType.F64 else ()
    arguments: list[OpenCLArgument] = [BufferArgument(0), long(n), *sequence, *affine]
    return OpenCLPlan(
        (launch(entry, arguments, (-(-blocks // _BLOCKS),), (16,)),), (type_option(y.dtype), *double)
    )
