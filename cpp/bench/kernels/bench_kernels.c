/* The kernels that the benchmarks give to their own server: they do nothing, read everything, or work for a while. */
#include <polymux.h>
#include <stdint.h>

uint32_t polymux_kernel_library_abi(void) { return POLYMUX_KERNEL_ABI; }

/* bench_empty(x, scale: f8, count: i8) -> y: what a task itself costs. */
POLYMUX_API int bench_empty(polymux_kernel_call* call) {
  (void)call;
  return 0;
}

static uint64_t count_of(const polymux_kernel_buffer* buffer) {
  uint64_t count = 1;
  for (int32_t d = 0; d < buffer->ndim; ++d) count *= (uint64_t)buffer->shape[d];
  return count;
}

/* bench_step(x: u8, turns: i8) -> y: u8: counts on in the first and the last word, after a number of idle turns. */
POLYMUX_API int bench_step(polymux_kernel_call* call) {
  const polymux_kernel_buffer *x = &call->buffers[0], *y = &call->buffers[1];
  const int64_t turns = *(const int64_t*)call->args;
  for (volatile int64_t i = 0; i < turns; ++i) {
  }
  const uint64_t first = ((const uint64_t*)x->data)[0], last = ((const uint64_t*)x->data)[count_of(x) - 1];
  ((uint64_t*)y->data)[0] = first + 1;
  ((uint64_t*)y->data)[count_of(y) - 1] = last + 1;
  return 0;
}

/* bench_sum(data: u8) -> total: u8: the sum of all words modulo 2^64, at the speed of memory. */
POLYMUX_API int bench_sum(polymux_kernel_call* call) {
  const uint64_t* words = call->buffers[0].data;
  const uint64_t count = count_of(&call->buffers[0]);
  uint64_t lanes[8] = {0};
  uint64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    for (int lane = 0; lane < 8; ++lane) lanes[lane] += words[i + lane];
  }
  for (; i < count; ++i) lanes[0] += words[i];
  uint64_t total = 0;
  for (int lane = 0; lane < 8; ++lane) total += lanes[lane];
  *(uint64_t*)call->buffers[1].data = total;
  return 0;
}
