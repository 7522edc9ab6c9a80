// Splitting one kernel's work over the cores of its share.
#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <thread>
#include <vector>

// Versions of a function for wider vectors, chosen when the library is loaded.
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define POLYMUX_VECTOR_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define POLYMUX_VECTOR_CLONES
#endif

namespace polymux::kernels {

inline constexpr uint64_t kGrainNbytes = uint64_t{1} << 21;  // memory-bound work worth a thread of its own

// Calls body(begin, end) over disjoint ranges that cover [0, count): on at most `threads` threads, each with at least
// `grain` items; without a second thread when the work is small. New threads inherit the caller's affinity, which is
// the share's cores. What a kernel computes must not depend on where the ranges are cut. `body` must not throw.
template <class Body>
void parallel_for(uint32_t threads, uint64_t count, uint64_t grain, Body body) {
  const uint64_t parts =
      std::clamp<uint64_t>(std::min<uint64_t>(threads, count / std::max<uint64_t>(grain, 1)), 1, 256);
  const auto cut = [&](uint64_t part) { return count / parts * part + std::min(part, count % parts); };
  std::vector<std::thread> workers;
  workers.reserve(parts - 1);
  uint64_t started = 1;
  try {
    for (; started < parts; ++started) {
      workers.emplace_back([&body, begin = cut(started), end = cut(started + 1)] { body(begin, end); });
    }
  } catch (const std::exception&) {  // no thread to be had: the caller does the rest
    body(cut(started), count);
  }
  body(uint64_t{0}, cut(1));
  for (std::thread& worker : workers) {
    worker.join();
  }
}

}  // namespace polymux::kernels
