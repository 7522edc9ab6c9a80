/* Clocks, medians and the connected session that the measurements use. */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void sleep_until_ns(uint64_t at_ns) {
  const struct timespec t = {(time_t)(at_ns / 1000000000u), (long)(at_ns % 1000000000u)};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR) {
  }
}

void sleep_us(uint64_t us) { sleep_until_ns(now_ns() + us * 1000u); }

void fail(const char* what) {
  fprintf(stderr, "polymux-cbench: %s\n", what);
  exit(1);
}

void check(polymux_status status, const char* what) {
  if (status == POLYMUX_OK) return;
  fprintf(stderr, "polymux-cbench: %s: %s: %s\n", what, polymux_status_name(status), polymux_last_error());
  exit(1);
}

void* allocate(size_t count, size_t nbytes) {
  void* memory = calloc(count == 0 ? 1 : count, nbytes);
  if (memory == NULL) fail("out of memory");
  return memory;
}

void pin(int core) {
  if (core < 0) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) fail("cannot pin to the core asked for");
}

double cycles_per_ns(void) {
  const uint64_t start_ns = now_ns();
  const uint64_t start = cycles_before();
  sleep_us(50000);
  const uint64_t end = cycles_before();
  return (double)(end - start) / (double)(now_ns() - start_ns);
}

uint64_t timer_cycles(void) {
  enum { kPairs = 10001 };
  static uint64_t pairs[kPairs];
  for (size_t i = 0; i < kPairs; ++i) {
    const uint64_t start = cycles_before();
    pairs[i] = cycles_after() - start;
  }
  return median(pairs, kPairs);
}

static int compare(const void* a, const void* b) {
  const uint64_t x = *(const uint64_t*)a, y = *(const uint64_t*)b;
  return x < y ? -1 : x > y;
}

uint64_t median(uint64_t* values, size_t count) {
  if (count == 0) return 0;
  qsort(values, count, sizeof *values, compare);
  return values[count / 2];
}

void session_open(session* s, const options* o) {
  memset(s, 0, sizeof *s);
  const polymux_connect_options connection = {.socket_path = o->socket, .name = "polymux-cbench"};
  check(polymux_connect(&connection, &s->client), "connect");
  check(polymux_kernel_find(s->client, o->kernel, &s->kernel), "find the kernel");
  s->n_queues = o->queues;
  s->queues = allocate(o->queues, sizeof *s->queues);
  s->buffers = allocate(2 * (size_t)o->queues, sizeof *s->buffers);
  const int64_t shape[] = {1024};
  for (uint32_t i = 0; i < o->queues; ++i) {
    polymux_queue_options queue = {0};
    queue.capacity = o->capacity;
    check(polymux_queue_open(s->client, &queue, &s->queues[i]), "open a queue");
    for (uint32_t k = 0; k < 2; ++k) {
      check(polymux_buffer_alloc(s->client, POLYMUX_F32, 1, shape, 0, &s->buffers[2 * i + k]), "allocate a buffer");
    }
  }
}

void session_close(session* s) {
  for (uint32_t i = 0; i < s->n_queues; ++i) {
    polymux_buffer_free(s->buffers[2 * i]);
    polymux_buffer_free(s->buffers[2 * i + 1]);
    polymux_queue_close(s->queues[i]);
  }
  polymux_close(s->client);
  free(s->queues);
  free(s->buffers);
}

polymux_status session_submit(session* s, uint32_t queue, polymux_task* task) {
  static const uint8_t accesses[] = {POLYMUX_READ, POLYMUX_WRITE};
  const struct {
    double scale;
    int64_t count;
  } arguments = {2.0, 1024};
  return polymux_submit(s->queues[queue], s->kernel, 2, &s->buffers[2 * queue], accesses, &arguments, sizeof arguments,
                        NULL, task);
}
