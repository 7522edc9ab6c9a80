// bench_step, one work item of it: counts on in the first and the last word, after a number of idle turns.
__kernel void bench_step(__global const ulong *x, __global ulong *y, long nx, long ny, long turns) {
  volatile long idle = 0;
  for (long i = 0; i < turns; ++i) idle = i;
  const ulong first = x[0], last = x[nx - 1];
  y[0] = first + 1;
  y[ny - 1] = last + 1;
}
