/* Empty tasks through the queues of this process as fast as they go, and, with --later, what an issue costs at the
 * beginning and after many tasks. */
#include <stdio.h>
#include <stdlib.h>

#include "bench.h"

enum { kIssues = 10000 };

/* Cycles of one submit: the mean within a batch that leaves the queue room, the median of the batches. */
static double issue_cycles(session* s, const options* o) {
  const uint64_t batches = kIssues / o->batch + 1;
  uint64_t* times = allocate(batches, sizeof *times);
  for (uint64_t b = 0; b < batches; ++b) {
    const uint64_t start = cycles_before();
    for (uint64_t i = 0; i < o->batch; ++i) check(session_submit(s, 0, NULL), "submit");
    times[b] = cycles_after() - start;
    check(polymux_synchronize(s->queues[0], POLYMUX_FOREVER), "synchronize");
  }
  const double cycles = (double)median(times, batches) / (double)o->batch;
  free(times);
  return cycles;
}

static void push(session* s, uint64_t tasks, uint64_t batch) {
  for (uint64_t done = 0; done < tasks;) {
    for (uint32_t queue = 0; queue < s->n_queues && done < tasks; ++queue) {
      for (uint64_t i = 0; i < batch && done < tasks; ++i, ++done) check(session_submit(s, queue, NULL), "submit");
    }
  }
  for (uint32_t queue = 0; queue < s->n_queues; ++queue) {
    check(polymux_synchronize(s->queues[queue], POLYMUX_FOREVER), "synchronize");
  }
}

int run_throughput(const options* o) {
  pin(o->core);
  session s;
  session_open(&s, o);
  const double first = o->later != 0 ? issue_cycles(&s, o) : 0.0;
  if (o->later != 0) push(&s, o->later, o->batch);
  const double last = o->later != 0 ? issue_cycles(&s, o) : 0.0;
  push(&s, 4 * (uint64_t)o->capacity, o->batch); /* warm-up */
  if (o->start_at_ns != 0) sleep_until_ns(o->start_at_ns);
  const uint64_t start_ns = now_ns();
  push(&s, o->rounds, o->batch);
  const uint64_t end_ns = now_ns();
  const double per_ns = cycles_per_ns();
  printf("{\"tasks\": %llu, \"start_ns\": %llu, \"end_ns\": %llu", (unsigned long long)o->rounds,
         (unsigned long long)start_ns, (unsigned long long)end_ns);
  if (o->later != 0) {
    printf(", \"issue_first_ns\": %.2f, \"issue_last_ns\": %.2f", first / per_ns, last / per_ns);
  }
  printf("}\n");
  session_close(&s);
  return 0;
}
