/* The floor when both sides sleep: two processes that wake each other through futex(2), spinning nowhere. */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"

typedef struct word {
  _Alignas(128) _Atomic uint32_t value;
} word;

static void wake(word* w, uint32_t value) {
  atomic_store(&w->value, value);
  syscall(SYS_futex, &w->value, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static void wait_for(word* w, uint32_t value) {
  uint32_t seen;
  while ((seen = atomic_load(&w->value)) != value) syscall(SYS_futex, &w->value, FUTEX_WAIT, seen, NULL, NULL, 0);
}

int run_futex(const options* o) {
  word* words = mmap(NULL, 2 * sizeof *words, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (words == MAP_FAILED) fail("cannot map shared memory");
  const uint32_t warmup = 20, rounds = (uint32_t)o->rounds;
  const pid_t child = fork();
  if (child < 0) fail("cannot fork");
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    pin(o->peer_core);
    for (uint32_t i = 1; i <= warmup + rounds; ++i) {
      wait_for(&words[0], i);
      wake(&words[1], i);
    }
    _exit(0);
  }
  pin(o->core);
  uint64_t* times = allocate(rounds, sizeof *times);
  for (uint32_t i = 1; i <= warmup + rounds; ++i) {
    if (o->pause_us != 0) sleep_us(o->pause_us);
    const uint64_t start = cycles_before();
    wake(&words[0], i);
    wait_for(&words[1], i);
    const uint64_t spent = cycles_after() - start;
    if (i > warmup) times[i - warmup - 1] = spent;
  }
  waitpid(child, NULL, 0);
  const double cycles = (double)median(times, rounds);
  printf("{\"cycles\": %.0f, \"us\": %.4f}\n", cycles, cycles / cycles_per_ns() / 1000.0);
  return 0;
}
