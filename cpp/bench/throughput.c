/* Empty tasks through the queues of this process as fast as they go, and, with --later, what an issue costs at the
 * beginning and after many tasks. */
#include <stdio.h>
#include <stdlib.h>

#include "bench.h"

enum { kIssues = 10000 };

/* Median cycles of single submits, in batches that leave the queue room. */
static uint64_t issue_cycles(session* s, const options* o) {
  static uint64_t times[kIssues];
  for (uint64_t i = 0; i < kIssues; ++i) {
    const uint64_t start = cycles_before();
    const polymux_status status = session_submit(s, 0, NULL);
    times[i] = cycles_after() - start;
    check(status, "submit");
    if ((i + 1) % o->batch == 0) check(polymux_synchronize(s->queues[0], POLYMUX_FOREVER), "synchronize");
  }
  check(polymux_synchronize(s->queues[0], POLYMUX_FOREVER), "synchronize");
  return median(times, kIssues);
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
  const double first = o->later != 0 ? (double)issue_cycles(&s, o) : 0.0;
  if (o->later != 0) push(&s, o->later, o->batch);
  const double last = o->later != 0 ? (double)issue_cycles(&s, o) : 0.0;
  push(&s, 4 * (uint64_t)o->capacity, o->batch); /* warm-up */
  if (o->start_at_ns != 0) sleep_until_ns(o->start_at_ns);
  const uint64_t start_ns = now_ns();
  push(&s, o->rounds, o->batch);
  const uint64_t end_ns = now_ns();
  const double timer = (double)timer_cycles(), per_ns = cycles_per_ns();
  printf("{\"tasks\": %llu, \"start_ns\": %llu, \"end_ns\": %llu", (unsigned long long)o->rounds,
         (unsigned long long)start_ns, (unsigned long long)end_ns);
  if (o->later != 0) {
    printf(", \"issue_first_ns\": %.2f, \"issue_last_ns\": %.2f", (first - timer) / per_ns, (last - timer) / per_ns);
  }
  printf("}\n");
  session_close(&s);
  return 0;
}
