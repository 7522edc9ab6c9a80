/* The floor of a stream of tasks: 64-byte messages through a bare ring of one producer and one consumer, which gives
 * the slots back. What one message costs the producer, and how many pass in a second. */
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

enum { kSlots = 1024, kMessageBytes = 64 };

typedef struct ring {
  _Alignas(128) _Atomic uint64_t tail; /* producer */
  _Alignas(128) _Atomic uint64_t head; /* consumer */
  _Alignas(128) unsigned char slots[kSlots][kMessageBytes];
} ring;

static void consume(ring* r, uint64_t messages) {
  unsigned char message[kMessageBytes];
  uint64_t sum = 0;
  for (uint64_t head = 0; head < messages;) {
    const uint64_t tail = atomic_load_explicit(&r->tail, memory_order_acquire);
    if (head == tail) spin_hint();
    for (; head < tail; ++head) {
      memcpy(message, r->slots[head % kSlots], kMessageBytes);
      sum += message[0];
      atomic_store_explicit(&r->head, head + 1, memory_order_release);
    }
  }
  _exit(sum % 256 == 0 ? 0 : 1);
}

int run_stream(const options* o) {
  ring* r = mmap(NULL, sizeof *r, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (r == MAP_FAILED) fail("cannot map shared memory");
  const pid_t child = fork();
  if (child < 0) fail("cannot fork");
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    pin(o->peer_core);
    consume(r, o->rounds + 1);
  }
  pin(o->core);
  unsigned char message[kMessageBytes] = {0};
  atomic_store_explicit(&r->tail, 1,
                        memory_order_release); /* an empty message: the consumer is there when it is gone */
  while (atomic_load_explicit(&r->head, memory_order_acquire) == 0) spin_hint();
  const uint64_t start_ns = now_ns(), start = cycles_before();
  uint64_t head = 1;
  for (uint64_t tail = 1; tail <= o->rounds; ++tail) {
    while (tail - head >= kSlots) {
      head = atomic_load_explicit(&r->head, memory_order_acquire);
      if (tail - head >= kSlots) spin_hint();
    }
    memcpy(message + 8, &tail, sizeof tail);
    memcpy(r->slots[tail % kSlots], message, kMessageBytes);
    atomic_store_explicit(&r->tail, tail + 1, memory_order_release);
  }
  while (atomic_load_explicit(&r->head, memory_order_acquire) <= o->rounds) spin_hint();
  const uint64_t spent = cycles_after() - start, spent_ns = now_ns() - start_ns;
  int status = 0;
  if (waitpid(child, &status, 0) != child || status != 0) fail("the consumer read other messages");
  printf("{\"cycles\": %.1f, \"per_s\": %.0f}\n", (double)spent / (double)o->rounds,
         (double)o->rounds * 1e9 / (double)spent_ns);
  return 0;
}
