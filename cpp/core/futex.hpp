// Sleeping on words of shared memory (futex(2), futex_waitv(2)).
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <ctime>
#include <span>

#include "clock.hpp"

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif

namespace polymux {

inline constexpr size_t kMaxFutexes = 128;  // FUTEX_WAITV_MAX

inline void futex_wake_all(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// Sleeps while *word == value; false when the time is over. Can return early.
inline bool futex_wait(std::atomic<uint32_t>* word, uint32_t value, int64_t timeout_ns) {
  timespec t{static_cast<time_t>(timeout_ns / 1'000'000'000), static_cast<long>(timeout_ns % 1'000'000'000)};
  const long rc = syscall(SYS_futex, word, FUTEX_WAIT, value, timeout_ns < 0 ? nullptr : &t, nullptr, 0);
  return !(rc == -1 && errno == ETIMEDOUT);
}

struct FutexValue {
  std::atomic<uint32_t>* word;
  uint32_t value;
};

// Sleeps until any of the words has another value (at most kMaxFutexes words). Can return early. Kernels older than
// 5.16 have no futex_waitv: there it sleeps on the first word in slices of a millisecond.
inline void futex_wait_any(std::span<const FutexValue> words, int64_t timeout_ns) {
  struct Waiter {
    uint64_t val, uaddr;
    uint32_t flags, reserved;
  } waiters[kMaxFutexes];
  const size_t n = words.size() < kMaxFutexes ? words.size() : kMaxFutexes;
  for (size_t i = 0; i < n; ++i) {
    waiters[i] = {words[i].value, reinterpret_cast<uint64_t>(words[i].word), 2 /* FUTEX2_SIZE_U32 */, 0};
  }
  timespec t;
  if (timeout_ns >= 0) {
    const int64_t at = now_ns() + timeout_ns;
    t = {static_cast<time_t>(at / 1'000'000'000), static_cast<long>(at % 1'000'000'000)};
  }
  const long rc = syscall(SYS_futex_waitv, waiters, n, 0, timeout_ns < 0 ? nullptr : &t, CLOCK_MONOTONIC);
  if (rc == -1 && errno == ENOSYS) {
    const int64_t slice_ns = 1'000'000;
    futex_wait(words[0].word, words[0].value, timeout_ns < 0 || timeout_ns > slice_ns ? slice_ns : timeout_ns);
  }
}

}  // namespace polymux
