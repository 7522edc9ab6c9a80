/* What one submit costs the application while the server drains the queue: the median of single calls, and the mean
 * within a batch. A batch is smaller than the queue, so no call ever waits for a free slot. */
#include <stdio.h>
#include <stdlib.h>

#include "bench.h"

int run_issue(const options* o) {
  pin(o->core);
  session s;
  session_open(&s, o);
  const uint64_t batches = (o->rounds + o->batch - 1) / o->batch;
  uint64_t* single = allocate(batches * o->batch, sizeof *single);
  uint64_t* batched = allocate(batches, sizeof *batched);
  for (uint64_t b = 0; b < batches + 10; ++b) { /* ten to warm up */
    const uint64_t slot = b < 10 ? 0 : b - 10;
    for (uint64_t i = 0; i < o->batch; ++i) {
      const uint64_t start = cycles_before();
      const polymux_status status = session_submit(&s, 0, NULL);
      single[slot * o->batch + i] = cycles_after() - start;
      check(status, "submit");
    }
    check(polymux_synchronize(s.queues[0], POLYMUX_FOREVER), "synchronize");
    const uint64_t start = cycles_before();
    for (uint64_t i = 0; i < o->batch; ++i) check(session_submit(&s, 0, NULL), "submit");
    batched[slot] = (cycles_after() - start) / o->batch;
    check(polymux_synchronize(s.queues[0], POLYMUX_FOREVER), "synchronize");
  }
  const uint64_t timer = timer_cycles();
  const uint64_t with_timer = median(single, batches * o->batch);
  printf("{\"cycles\": %llu, \"timer_cycles\": %llu, \"batched_cycles\": %llu, \"cycles_per_ns\": %.4f}\n",
         (unsigned long long)(with_timer > timer ? with_timer - timer : 0), (unsigned long long)timer,
         (unsigned long long)median(batched, batches), cycles_per_ns());
  session_close(&s);
  return 0;
}
