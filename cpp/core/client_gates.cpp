// The client's side of its jobs' gates: what says whether a job may go on, also when nobody is left to say it.
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

void Client::shut_gates() {
  for (uint32_t i = 0; i < kMaxJobs; ++i) {
    gate(i)->word.store(kGateServerGone, std::memory_order_release);
    futex_wake_all(&gate(i)->word);
  }
}

}  // namespace polymux
