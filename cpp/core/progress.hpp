// How far a queue has come, seen from the client.
#pragma once

#include <atomic>
#include <cstdint>

#include "layout.hpp"

namespace polymux {

// Outlives the queue, for buffers that it used.
struct Progress {
  static constexpr uint32_t kMostMoments = 32;

  QueueHeader* header;
  std::atomic<bool> closed{false};
  std::atomic<uint32_t> sleeps_due{0};  // waits that sleep at once, before one looks on again

  // Asks to be woken when a sequence that is not done yet is. Whoever sleeps must ask again after every wake-up: an
  // earlier sequence can have been asked for meanwhile, and only one is remembered.
  void want(uint64_t sequence) {
    uint64_t wanted = header->wanted.load(std::memory_order_relaxed);
    while ((wanted > sequence || header->completed.load(std::memory_order_acquire) >= wanted) && wanted != sequence &&
           !header->wanted.compare_exchange_weak(wanted, sequence, std::memory_order_seq_cst)) {
    }
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }

  bool done(uint64_t sequence) const {
    return closed.load(std::memory_order_acquire) || header->completed.load(std::memory_order_acquire) >= sequence;
  }

  // How long to look away while waiting for a sequence, in Spin's moments: short when it is the next one.
  uint32_t moments_to(uint64_t sequence) const {
    const uint64_t completed = header->completed.load(std::memory_order_relaxed);
    const uint64_t missing = completed < sequence ? sequence - completed : 1;
    return missing < kMostMoments ? static_cast<uint32_t>(missing) : kMostMoments;
  }
};

}  // namespace polymux
