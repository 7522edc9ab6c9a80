// A worker of a device that jobs use as well: its tasks wait at a gate until they are let in.
#include "worker.hpp"

namespace polymux {

void Worker::guard(bool on) { post({Change::Kind::guard, {}, nullptr, on ? 1u : 0u}); }
void Worker::let_in() { post({Change::Kind::let_in, {}}); }
void Worker::leave() { post({Change::Kind::leave, {}}); }

void Worker::apply_gate(const Change& change) {
  switch (change.kind) {
    case Change::Kind::guard:
      if (!guarded_) gate_ = Gate::in;
      guarded_ = change.number != 0;
      break;
    case Change::Kind::let_in:  // void when the thread has said meanwhile that it has no task any more
      if (gate_ == Gate::asked) gate_ = Gate::in;
      break;
    default:
      if (gate_ == Gate::in) gate_ = Gate::leaving;
  }
}

// What the caller is to hear before a task is taken from a guarded device; nothing: it sleeps, or has tasks in hand.
std::optional<Worker::Next> Worker::at_gate(bool block) {
  if (gate_ == Gate::leaving && !block) return Next{.kind = Kind::idle};
  const std::optional<Hints> most = bound_.most_urgent();
  if (gate_ == Gate::leaving) {
    gate_ = Gate::out;
    if (!most) return Next{.kind = Kind::drained};
  }
  if (!most && gate_ == Gate::asked) {
    gate_ = Gate::out;
    return Next{.kind = Kind::drained};
  }
  if (most && (gate_ == Gate::out || most->more_urgent_than(asked_))) {
    gate_ = Gate::asked;
    asked_ = *most;
    return Next{.kind = Kind::wanted, .hints = *most, .weight = bound_.weight_of(most->priority)};
  }
  if (!block) return Next{.kind = Kind::idle};
  return std::nullopt;
}

}  // namespace polymux
