/* The C side of Polymux's benchmarks: measures through include/polymux.h alone and prints one line of JSON. */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

static const char usage[] =
    "usage: polymux-cbench MEASUREMENT [OPTION...]\n"
    "\n"
    "  ring        round trip over two bare rings between two spinning processes\n"
    "  stream      messages through a bare ring between two spinning processes\n"
    "  futex       round trip between two processes that sleep on futexes\n"
    "  issue       cycles of one submit while the server drains\n"
    "  roundtrip   one empty task: submit and wait\n"
    "  throughput  empty tasks per second\n"
    "\n"
    "  --socket PATH   the server's socket (default: the user's own)\n"
    "  --kernel NAME   kernel of two buffers and 16 bytes of scalars (default: bench_empty)\n"
    "  --rounds N      timed repetitions or tasks (default: 20000; at least 16)\n"
    "  --batch N       tasks between two synchronizations or queue changes (default: 64)\n"
    "  --pause-us N    sleep before every round (default: 0)\n"
    "  --later N       throughput: also compare the first issues with those after N tasks\n"
    "  --start-at-ns N throughput: start at this time of CLOCK_MONOTONIC\n"
    "  --queues N      throughput: queues of this process (default: 1)\n"
    "  --capacity N    tasks in flight of each queue (default: 1024)\n"
    "  --core N        pin this process to a core\n"
    "  --peer-core N   ring, stream, futex: pin the other process to a core\n";

static uint64_t number(const char* option, const char* text) {
  char* end;
  errno = 0;
  const unsigned long long value = strtoull(text, &end, 10);
  if (errno != 0 || end == text || *end != '\0' || *text == '-') {
    fprintf(stderr, "polymux-cbench: --%s %s is not a whole number\n", option, text);
    exit(2);
  }
  return value;
}

static void set_option(options* o, const char* name, const char* value) {
  if (strcmp(name, "socket") == 0) {
    o->socket = value;
    return;
  }
  if (strcmp(name, "kernel") == 0) {
    o->kernel = value;
    return;
  }
  const uint64_t n = number(name, value);
  if (strcmp(name, "rounds") == 0) o->rounds = n;
  if (strcmp(name, "batch") == 0) o->batch = n;
  if (strcmp(name, "pause-us") == 0) o->pause_us = n;
  if (strcmp(name, "later") == 0) o->later = n;
  if (strcmp(name, "start-at-ns") == 0) o->start_at_ns = n;
  if (strcmp(name, "queues") == 0) o->queues = (uint32_t)n;
  if (strcmp(name, "capacity") == 0) o->capacity = (uint32_t)n;
  if (strcmp(name, "core") == 0) o->core = (int)n;
  if (strcmp(name, "peer-core") == 0) o->peer_core = (int)n;
}

static options parse(int argc, char** argv) {
  static const struct option known[] = {
      {"socket", required_argument, NULL, 0},      {"kernel", required_argument, NULL, 0},
      {"rounds", required_argument, NULL, 0},      {"batch", required_argument, NULL, 0},
      {"pause-us", required_argument, NULL, 0},    {"later", required_argument, NULL, 0},
      {"start-at-ns", required_argument, NULL, 0}, {"queues", required_argument, NULL, 0},
      {"capacity", required_argument, NULL, 0},    {"core", required_argument, NULL, 0},
      {"peer-core", required_argument, NULL, 0},   {NULL, 0, NULL, 0},
  };
  options o = {0};
  o.kernel = "bench_empty";
  o.rounds = 20000;
  o.batch = 64;
  o.queues = 1;
  o.capacity = 1024;
  o.core = o.peer_core = -1;
  int index = 0, code;
  while ((code = getopt_long(argc, argv, "", known, &index)) != -1) {
    if (code != 0) exit(2);
    set_option(&o, known[index].name, optarg);
  }
  if (o.rounds == 0 || o.batch == 0 || o.queues == 0) fail("--rounds, --batch and --queues must be at least 1");
  if (o.rounds < kGroup) o.rounds = kGroup;
  if (o.batch >= o.capacity) fail("--batch must be smaller than --capacity, or a submit waits for a free slot");
  return o;
}

int main(int argc, char** argv) {
  static const struct {
    const char* name;
    int (*run)(const options*);
  } measurements[] = {{"ring", run_ring},   {"stream", run_stream},       {"futex", run_futex},
                      {"issue", run_issue}, {"roundtrip", run_roundtrip}, {"throughput", run_throughput}};
  if (argc < 2 || strcmp(argv[1], "--help") == 0) {
    fputs(usage, argc < 2 ? stderr : stdout);
    return argc < 2 ? 2 : 0;
  }
  for (size_t i = 0; i < sizeof measurements / sizeof measurements[0]; ++i) {
    if (strcmp(argv[1], measurements[i].name) != 0) continue;
    const options o = parse(argc - 1, argv + 1);
    return measurements[i].run(&o);
  }
  fprintf(stderr, "polymux-cbench: no measurement is called %s; see polymux-cbench --help\n", argv[1]);
  return 2;
}
