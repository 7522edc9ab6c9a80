"""The OpenCL reduction that dot and reduce share: chunks by work-groups, then one work-group over their results.

Chunks and the order within them depend on the number of elements alone, so a device gives the same bits every time.
Sums of floats are accumulated in double precision where the device has it.
"""

from __future__ import annotations

from polymux.core.opencl_plan import BufferArgument, OpenCLArgument, OpenCLPlan, ScratchArgument
from polymux.kernel.builtin.opencl import launch, long

LOCAL = 64
RUN = 16
CHUNK = 1 << 14
"""Elements that a work-group reduces; more when there would be more than `MAX_CHUNKS` of them."""
MAX_CHUNKS = 1 << 12
ACCUMULATOR_NBYTES = 8

SOURCE = """
// Build options: T; ACC_DOUBLE when sums of T want double precision, else ACC; IDENTITY; JOIN(a, b);
// INPUTS, a parameter list; ELEMENT(i), made of the inputs.
#if defined(ACC_DOUBLE) && defined(cl_khr_fp64)
typedef double acc_t;
#else
typedef ACC acc_t;
#endif

#define UNROLL _Pragma("unroll")
#define LOCAL 64
#define RUN 16  // neighbours that a work-item joins at a time, each with an accumulator of its own

acc_t join_group(acc_t mine, __local acc_t *lanes) {
  const int lane = get_local_id(0);
  lanes[lane] = mine;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int half_count = LOCAL / 2; half_count > 0; half_count /= 2) {
    if (lane < half_count) lanes[lane] = JOIN(lanes[lane], lanes[lane + half_count]);
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  return lanes[0];
}

#define REDUCE_CHUNK(name, result_t)                                                        \\
  __kernel __attribute__((reqd_work_group_size(LOCAL, 1, 1))) void name(                    \\
      INPUTS, __global result_t *results, long n, long chunk) {                             \\
    __local acc_t lanes[LOCAL];                                                             \\
    const long begin = (long)get_group_id(0) * chunk, end = min(n, begin + chunk);          \\
    acc_t run[RUN];                                                                         \\
    for (int e = 0; e < RUN; ++e) run[e] = IDENTITY;                                        \\
    long base = begin + get_local_id(0) * RUN;                                              \\
    for (; base + RUN <= end; base += LOCAL * RUN) {                                        \\
      UNROLL for (int e = 0; e < RUN; ++e) {                                                \\
        const acc_t element = ELEMENT(base + e);                                            \\
        run[e] = JOIN(run[e], element);                                                     \\
      }                                                                                     \\
    }                                                                                       \\
    for (int e = 0; e < RUN && base + e < end; ++e) {                                       \\
      const acc_t element = ELEMENT(base + e);                                              \\
      run[e] = JOIN(run[e], element);                                                       \\
    }                                                                                       \\
    acc_t mine = run[0];                                                                    \\
    for (int e = 1; e < RUN; ++e) mine = JOIN(mine, run[e]);                                \\
    const acc_t total = join_group(mine, lanes);                                            \\
    if (get_local_id(0) == 0) results[get_group_id(0)] = (result_t)total;                   \\
  }
REDUCE_CHUNK(to_partial, acc_t)
REDUCE_CHUNK(to_result, T)

__kernel __attribute__((reqd_work_group_size(LOCAL, 1, 1))) void join_partials(
    __global const acc_t *partials, __global T *result, long n) {
  __local acc_t lanes[LOCAL];
  acc_t mine = IDENTITY;
  for (long i = get_local_id(0); i < n; i += LOCAL) mine = JOIN(mine, partials[i]);
  const acc_t total = join_group(mine, lanes);
  if (get_local_id(0) == 0) result[0] = (T)total;
}
"""

SUM_OF_FLOATS = ("-DACC_DOUBLE", "-DACC=T", "-DIDENTITY=0", "-DJOIN(a,b)=((a)+(b))")


def plan_all(inputs: tuple[OpenCLArgument, ...], result: int, n: int, options: tuple[str, ...]) -> OpenCLPlan:
    """Reduce `n` elements to the one of buffer number `result`."""
    chunk = max(CHUNK, -(-n // MAX_CHUNKS))
    chunks = -(-n // chunk)
    if chunks <= 1:
        return plan_rows(inputs, result, 1, n, options)
    partials = launch(
        "to_partial", [*inputs, ScratchArgument(0), long(n), long(chunk)], (chunks * LOCAL,), (LOCAL,)
    )
    join = launch(
        "join_partials", [ScratchArgument(0), BufferArgument(result), long(chunks)], (LOCAL,), (LOCAL,)
    )
    return OpenCLPlan((partials, join), options, (chunks * ACCUMULATOR_NBYTES,))


def plan_rows(
    inputs: tuple[OpenCLArgument, ...], result: int, rows: int, n: int, options: tuple[str, ...]
) -> OpenCLPlan:
    """Reduce each of `rows` contiguous runs of `n` elements to one element of buffer number `result`."""
    arguments = [*inputs, BufferArgument(result), long(rows * n), long(n)]
    return OpenCLPlan((launch("to_result", arguments, (rows * LOCAL,), (LOCAL,)),), options)
