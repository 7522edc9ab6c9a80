#include "bound_queues.hpp"

#include <algorithm>

namespace polymux {

unsigned char* BoundQueue::granted_data(const CheckedRef& ref) const {
  for (const GrantedBuffer& g : granted) {
    if (g.slot == ref.slot && g.generation == ref.generation) {
      return g.nbytes == ref.nbytes && (ref.access & ~g.access) == 0 ? g.data : nullptr;
    }
  }
  return nullptr;
}

bool BoundQueue::available() {
  if (held || broken || leaving || (fail_head && in_hand != 0)) return false;
  const uint64_t next = ring->taken + 1;
  seen = ring->view.published(next);
  if (seen != next && ring->view.vacant(seen, next)) [[likely]]
    return false;
  return !segment->dead() && ring->open.load(std::memory_order_relaxed);
}

BoundQueue* BoundQueues::find(const std::string& queue) const {
  for (const auto& q : queues_) {
    if (q->queue == queue) return q.get();
  }
  return nullptr;
}

void BoundQueues::add(std::unique_ptr<BoundQueue> queue, uint64_t group) {
  forget_groups();
  auto found = std::find_if(groups_.begin(), groups_.end(), [group](const auto& g) { return g->id == group; });
  if (found == groups_.end()) {
    groups_.push_back(std::make_unique<FairGroup>(FairGroup{group}));
    found = groups_.end() - 1;
  }
  queue->group = found->get();
  if (queue->group->n_queues++ == 0) ++n_groups_;
  queues_.push_back(std::move(queue));
}

std::unique_ptr<BoundQueue> BoundQueues::remove(BoundQueue* queue) {
  const auto at = std::find_if(queues_.begin(), queues_.end(), [queue](const auto& q) { return q.get() == queue; });
  std::unique_ptr<BoundQueue> gone = std::move(*at);
  queues_.erase(at);
  if (--gone->group->n_queues == 0) --n_groups_;
  gone->group = nullptr;
  return gone;
}

// A group without queues comes back with the virtual time that it left with: to open a queue anew earns nothing. When
// the others have caught up with it, there is nothing to remember.
void BoundQueues::forget_groups() {
  std::erase_if(groups_, [this](const auto& g) { return g->n_queues == 0 && g->virtual_time <= now_; });
}

bool BoundQueues::any_available() const {
  return std::any_of(queues_.begin(), queues_.end(), [](const auto& q) { return q->available(); });
}

Hints BoundQueues::hints(const BoundQueue& queue) {
  const TaskHeader& h = queue.ring->view.slot(queue.ring->taken + 1).header;
  const int64_t deadline_ns = h.deadline_ns;
  return {queue.priority + h.priority, deadline_ns > 0 ? deadline_ns : INT64_MAX};
}

std::optional<Hints> BoundQueues::most_urgent() const {
  std::optional<Hints> most;
  for (const auto& q : queues_) {
    if (!q->available()) continue;
    const Hints h = hints(*q);
    most = most ? Hints{std::max(most->priority, h.priority), std::min(most->deadline_ns, h.deadline_ns)} : h;
  }
  return most;
}

uint32_t BoundQueues::weight_of(int32_t priority) const {
  std::vector<const FairGroup*> counted;
  double weight = 0;
  for (const auto& q : queues_) {
    if (!q->available() || hints(*q).priority != priority) continue;
    if (std::find(counted.begin(), counted.end(), q->group) != counted.end()) continue;
    counted.push_back(q->group);
    weight += kNormalWeight / q->cost;
  }
  return std::max(1u, static_cast<uint32_t>(weight + 0.5));
}

BoundQueue* BoundQueues::choose() {
  ++choice_;
  return n_groups_ > 1 ? choose_between_groups() : choose_of_one_group();
}

BoundQueue* BoundQueues::chosen(size_t at) {
  turn_ = (at + 1) % queues_.size();
  BoundQueue* queue = queues_[at].get();
  queue->last_chosen = choice_;
  queue->group->last_seen = choice_;
  now_ = queue->group->virtual_time;
  return queue;
}

BoundQueue* BoundQueues::choose_of_one_group() {
  const size_t n = queues_.size();
  size_t best = n;
  Hints best_hints{};
  bool compared = false;
  for (size_t i = 0; i < n; ++i) {
    const size_t at = (turn_ + i) % n;
    if (!queues_[at]->available()) continue;
    if (best == n) {
      best = at;
      continue;
    }
    if (!compared) best_hints = hints(*queues_[best]);  // a queue that is alone is not looked into
    compared = true;
    const Hints h = hints(*queues_[at]);
    if (h.more_urgent_than(best_hints)) {
      best = at;
      best_hints = h;
    }
  }
  if (best == n) return nullptr;
  FairGroup& g = *queues_[best]->group;
  if (g.last_seen + 1 != choice_) g.virtual_time = std::max(g.virtual_time, now_);
  return chosen(best);
}

BoundQueue* BoundQueues::choose_between_groups() {
  double least = now_;
  for (const auto& q : queues_) {
    q->ready = q->available();
    FairGroup& g = *q->group;
    if (!q->ready || g.last_seen == choice_) continue;
    g.joining = g.last_seen + 1 != choice_;
    if (!g.joining) least = std::min(least, g.virtual_time);
    g.last_seen = choice_;
  }
  let_groups_join(least);
  const size_t n = queues_.size();
  size_t best = n;
  Hints best_hints{};
  for (size_t at = 0; at < n; ++at) {
    if (!queues_[at]->ready) continue;
    const Hints h = hints(*queues_[at]);
    if (best != n && !before(*queues_[at], h, *queues_[best], best_hints)) continue;
    best = at;
    best_hints = h;
  }
  return best == n ? nullptr : chosen(best);
}

bool BoundQueues::before(const BoundQueue& a, const Hints& of_a, const BoundQueue& b, const Hints& of_b) {
  if (of_a.priority != of_b.priority) return of_a.priority > of_b.priority;
  if (a.group->virtual_time != b.group->virtual_time) return a.group->virtual_time < b.group->virtual_time;
  if (of_a.deadline_ns != of_b.deadline_ns) return of_a.deadline_ns < of_b.deadline_ns;
  return a.last_chosen < b.last_chosen;
}

// Who had nothing to do begins where the least of the others is: not having used the stream earns nothing.
void BoundQueues::let_groups_join(double least) {
  for (const auto& g : groups_) {
    if (!g->joining) continue;
    g->joining = false;
    g->virtual_time = std::max(g->virtual_time, least);
  }
}

}  // namespace polymux
