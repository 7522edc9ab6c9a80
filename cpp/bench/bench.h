/* What the parts of polymux-cbench share: options, clocks, medians and a connected session. */
#ifndef POLYMUX_BENCH_H
#define POLYMUX_BENCH_H

#include <stddef.h>
#include <stdint.h>
#include <time.h>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

#include "polymux.h"

/* Round trips between two readings of the counter, which may step by ten nanoseconds. */
enum { kGroup = 16 };

typedef struct options {
  const char* socket;   /* of the server; NULL: the default one */
  const char* kernel;   /* takes two buffers and 16 bytes of scalars */
  uint64_t rounds;      /* timed repetitions, or tasks */
  uint64_t batch;       /* tasks between two waits for all of them */
  uint64_t pause_us;    /* idle time before a round, so that both sides sleep */
  uint64_t later;       /* throughput: tasks between the first and the last measured issues */
  uint64_t start_at_ns; /* CLOCK_MONOTONIC; processes that measure together start there */
  uint32_t queues;
  uint32_t capacity; /* of each queue */
  int core;          /* pin this process there; -1: do not */
  int peer_core;     /* ring, stream, futex: pin the other process there */
} options;

/* The counter, ordered against the code before and after it. */
static inline uint64_t cycles_before(void) {
#if defined(__x86_64__)
  _mm_lfence();
  const uint64_t now = __rdtsc();
  _mm_lfence();
  return now;
#elif defined(__aarch64__)
  uint64_t now;
  __asm__ volatile("isb; mrs %0, cntvct_el0" : "=r"(now)::"memory");
  return now;
#else
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
#endif
}

static inline uint64_t cycles_after(void) {
#if defined(__x86_64__)
  unsigned core;
  const uint64_t now = __rdtscp(&core);
  _mm_lfence();
  return now;
#else
  return cycles_before();
#endif
}

static inline void spin_hint(void) {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

uint64_t now_ns(void);
void sleep_us(uint64_t us);
void sleep_until_ns(uint64_t at_ns);
/* Prints the reason and ends the process. */
void fail(const char* what);
void check(polymux_status status, const char* what);
void* allocate(size_t count, size_t nbytes);
void pin(int core);

/* Counter steps of one nanosecond, and what an empty pair of cycles_before and cycles_after costs. */
double cycles_per_ns(void);
uint64_t timer_cycles(void);
/* The median; sorts the values. */
uint64_t median(uint64_t* values, size_t count);

/* A client with its queues, two buffers for each and the kernel's number. */
typedef struct session {
  polymux_client* client;
  uint32_t kernel;
  uint32_t n_queues;
  polymux_queue** queues;
  polymux_buffer** buffers;
} session;

void session_open(session* s, const options* o);
void session_close(session* s);
/* Submits the empty task to a queue: two buffers, 16 bytes of scalars. */
polymux_status session_submit(session* s, uint32_t queue, polymux_task* task);

int run_ring(const options* o);
int run_stream(const options* o);
int run_futex(const options* o);
int run_issue(const options* o);
int run_roundtrip(const options* o);
int run_throughput(const options* o);

#endif
