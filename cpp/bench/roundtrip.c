/* Issue one empty task and wait for it: back to back (both sides awake), or, with a pause, after both have slept. */
#include <stdio.h>

#include "bench.h"

static void call(session* s) {
  polymux_task task;
  check(session_submit(s, 0, &task), "submit");
  check(polymux_wait(task, POLYMUX_FOREVER), "empty task");
}

int run_roundtrip(const options* o) {
  pin(o->core);
  session s;
  session_open(&s, o);
  const uint64_t group = o->pause_us != 0 ? 1 : kGroup;
  const uint64_t warmup = o->pause_us != 0 ? 20 : 100, samples = o->rounds / group;
  uint64_t* times = allocate(samples, sizeof *times);
  for (uint64_t i = 0; i < warmup + samples; ++i) {
    if (o->pause_us != 0) sleep_us(o->pause_us);
    const uint64_t start = cycles_before();
    for (uint64_t k = 0; k < group; ++k) call(&s);
    const uint64_t spent = cycles_after() - start;
    if (i >= warmup) times[i - warmup] = spent;
  }
  const double cycles = (double)median(times, samples) / (double)group;
  printf("{\"cycles\": %.0f, \"us\": %.4f}\n", cycles, cycles / cycles_per_ns() / 1000.0);
  session_close(&s);
  return 0;
}
