// Around everything that can wait for the server. The Python module sets the hooks so that the interpreter's lock is
// free meanwhile: the server may be a thread of the same process and need it.
//
// Rule: no mutex of the client is held when a BlockingSection begins.
#pragma once

namespace polymux {

struct BlockingHooks {
  void* (*enter)() = nullptr;
  void (*leave)(void* state) = nullptr;
};

inline BlockingHooks blocking_hooks;

class BlockingSection {
 public:
  BlockingSection() : state_(blocking_hooks.enter != nullptr ? blocking_hooks.enter() : nullptr) {}
  ~BlockingSection() {
    if (state_ != nullptr) blocking_hooks.leave(state_);
  }
  BlockingSection(const BlockingSection&) = delete;
  BlockingSection& operator=(const BlockingSection&) = delete;

 private:
  void* state_;
};

}  // namespace polymux
