// The two clocks of the runtime: nanoseconds of CLOCK_MONOTONIC, and the processor's own counter where a call costs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <ctime>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace polymux {

inline int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

inline uint64_t cycles() {
#if defined(__x86_64__)
  return __rdtsc();
#elif defined(__aarch64__)
  uint64_t value;
  asm volatile("mrs %0, cntvct_el0" : "=r"(value));
  return value;
#else
  return static_cast<uint64_t>(now_ns());
#endif
}

// A coarse moment in 32 bits, for differences of up to 2^31 ticks (15 minutes at 2.4 GHz).
inline constexpr uint32_t kStampShift = 10;
inline uint32_t stamp_of(uint64_t cycles) { return static_cast<uint32_t>(cycles >> kStampShift); }

// What remains of a time-out that began at `start_ns`; -1 stays for ever.
inline int64_t time_left(int64_t start_ns, int64_t timeout_ns) {
  return timeout_ns < 0 ? -1 : std::max<int64_t>(0, timeout_ns - (now_ns() - start_ns));
}

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Turns counter values into nanoseconds; the longer it lives the more exact it is.
class CycleClock {
 public:
  CycleClock() : start_ns_(polymux::now_ns()), start_cycles_(cycles()) {}

  double ns_per_cycle() const {
    const uint64_t elapsed = cycles() - start_cycles_;
    return elapsed == 0 ? 1.0 : static_cast<double>(polymux::now_ns() - start_ns_) / static_cast<double>(elapsed);
  }
  int64_t at(uint64_t counter, double ns_per_cycle) const {
    return start_ns_ +
           static_cast<int64_t>(static_cast<double>(static_cast<int64_t>(counter - start_cycles_)) * ns_per_cycle);
  }

 private:
  int64_t start_ns_;
  uint64_t start_cycles_;
};

// Spins for at most a given time without asking the operating system for it at every turn.
class Spin {
 public:
  explicit Spin(int64_t limit_ns) : deadline_ns_(limit_ns <= 0 ? 0 : now_ns() + limit_ns) {}

  // Waits a moment and returns false when the time is over. Who expects to wait longer says so: looking at a word of
  // shared memory takes it away from whoever is about to write it.
  bool again(uint32_t moments = 1) {
    if (deadline_ns_ == 0) return false;
    for (uint32_t i = 0; i < moments; ++i) relax();
    turns_ += moments;
    if (turns_ < 64) return true;
    turns_ = 0;
    return now_ns() < deadline_ns_;
  }

 private:
  int64_t deadline_ns_;
  uint32_t turns_ = 0;
};

}  // namespace polymux
