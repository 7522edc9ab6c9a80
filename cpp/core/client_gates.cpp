// The client's side of its jobs' gates: what says whether a job may go on, also when nobody is left to say it.
#include <poll.h>

#include <cerrno>

#include "client.hpp"
#include "futex.hpp"

namespace polymux {

JobGate* Client::gate(uint32_t index) const {
  if (index >= kMaxJobs) {
    throw Failure(POLYMUX_INVALID_REQUEST,
                  "there is no gate " + std::to_string(index) + ", a session has " + std::to_string(kMaxJobs));
  }
  return reinterpret_cast<JobGate*>(base_ + kGatesOffset) + index;
}

bool Client::gate_wait(uint32_t index, uint32_t word, int64_t timeout_ns) const {
  return futex_wait(&gate(index)->word, word, timeout_ns);
}

bool Client::wait_until_gone(int64_t timeout_ns) {
  pollfd p{socket_, POLLRDHUP, 0};
  const timespec t{static_cast<time_t>(timeout_ns / 1'000'000'000), static_cast<long>(timeout_ns % 1'000'000'000)};
  const int ready = ppoll(&p, 1, &t, nullptr);
  if (ready == 0 || (ready < 0 && errno == EINTR)) return false;
  if (!closed()) gone_.store(true, std::memory_order_relaxed);
  for (uint32_t i = 0; i < kMaxJobs; ++i) {
    gate(i)->word.store(kGateServerGone, std::memory_order_release);
    futex_wake_all(&gate(i)->word);
  }
  return true;
}

}  // namespace polymux
