/* The kernels that the benchmarks give to their own server: one that does nothing, and one that reads everything. */
#include <polymux.h>
#include <stdint.h>

uint32_t polymux_kernel_library_abi(void) { return POLYMUX_KERNEL_ABI; }

/* bench_empty(x, scale: f8, count: i8) -> y: what a task itself costs. */
POLYMUX_API int bench_empty(polymux_kernel_call* call) {
  (void)call;
  return 0;
}

/* bench_sum(data: u8) -> total: u8: the sum of all words modulo 2^64, at the speed of memory. */
POLYMUX_API int bench_sum(polymux_kernel_call* call) {
  const uint64_t* words = call->buffers[0].data;
  uint64_t count = 1;
  for (int32_t d = 0; d < call->buffers[0].ndim; ++d) count *= (uint64_t)call->buffers[0].shape[d];
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
