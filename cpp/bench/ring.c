/* The floor of any such runtime: a request ring and a response ring of 64-byte messages between two spinning processes.
 * Each ring is the usual one of one producer and one consumer: the message first, then the producer's counter. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"

enum { kSlots = 64, kMessageBytes = 64 };

typedef struct ring {
  _Alignas(128) _Atomic uint64_t tail;
  _Alignas(128) unsigned char slots[kSlots][kMessageBytes];
} ring;

typedef struct shared {
  ring request;
  ring response;
} shared;

static void send(ring* r, uint64_t sequence, const unsigned char message[kMessageBytes]) {
  memcpy(r->slots[sequence % kSlots], message, kMessageBytes);
  atomic_store_explicit(&r->tail, sequence + 1, memory_order_release);
}

static void receive(ring* r, uint64_t sequence, unsigned char message[kMessageBytes]) {
  while (atomic_load_explicit(&r->tail, memory_order_acquire) <= sequence) spin_hint();
  memcpy(message, r->slots[sequence % kSlots], kMessageBytes);
}

static void serve(shared* s, uint64_t rounds) {
  unsigned char message[kMessageBytes];
  for (uint64_t i = 0; i < rounds; ++i) {
    receive(&s->request, i, message);
    send(&s->response, i, message);
  }
}

int run_ring(const options* o) {
  shared* s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (s == MAP_FAILED) fail("cannot map shared memory");
  const uint64_t warmup = 1024, rounds = o->rounds;
  const pid_t child = fork();
  if (child < 0) fail("cannot fork");
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    pin(o->peer_core);
    serve(s, warmup + rounds);
    _exit(0);
  }
  pin(o->core);
  uint64_t* times = allocate(rounds / kGroup + 1, sizeof *times);
  unsigned char message[kMessageBytes] = {0};
  uint64_t samples = 0, start = cycles_before();
  for (uint64_t i = 0; i < warmup + rounds; ++i) {
    memcpy(message, &i, sizeof i);
    send(&s->request, i, message);
    receive(&s->response, i, message);
    if (memcmp(message, &i, sizeof i) != 0) fail("the ring returned another message");
    if ((i + 1) % kGroup != 0) continue;
    const uint64_t now = cycles_after();
    if (i >= warmup) times[samples++] = now - start;
    start = cycles_before();
  }
  waitpid(child, NULL, 0);
  const double cycles = (double)median(times, samples) / kGroup;
  printf("{\"cycles\": %.0f, \"us\": %.4f}\n", cycles, cycles / cycles_per_ns() / 1000.0);
  return 0;
}
