#include "queue.hpp"

#include <algorithm>

#include "client.hpp"
#include "futex.hpp"

namespace polymux {

namespace {

constexpr int64_t kRefillNs = 5'000;

}  // namespace

Queue::Queue(std::shared_ptr<Client> client, const QueueOptions& options)
    : client_(std::move(client)), capacity_(options.capacity), raise_when_full_(options.raise_when_full) {
  if (!valid_capacity(capacity_)) {
    throw Failure(POLYMUX_INVALID_REQUEST,
                  "capacity " + std::to_string(capacity_) + " is not a power of two from 16 to 65536");
  }
  client_->collect();
  {
    std::lock_guard lock(client_->memory_mutex_);
    region_ = client_->allocate_block(queue_nbytes(capacity_), 128);
  }
  view_ = QueueView(client_->base() + region_, capacity_);
  std::memset(static_cast<void*>(view_.header), 0, sizeof(QueueHeader));
  view_.slot(1).header.sequence = 0;
  progress_ = std::make_shared<Progress>();
  progress_->header = view_.header;
  try {
    const Message reply = client_->request("queue_open", {{"offset", std::to_string(region_)},
                                                          {"capacity", std::to_string(capacity_)},
                                                          {"name", options.name},
                                                          {"priority", std::to_string(options.priority)},
                                                          {"device", options.device},
                                                          {"memory_nbytes", std::to_string(options.memory_nbytes)}});
    index_ = static_cast<uint32_t>(reply.number("index"));
    id_ = reply.text("queue");
    name_ = options.name.empty() ? id_ : options.name;
  } catch (...) {
    client_->free_region(region_);
    progress_->closed.store(true);
    throw;
  }
}

Queue::~Queue() { close(); }

void Queue::close() {
  if (progress_->closed.load(std::memory_order_acquire)) return;
  bool released = false;
  if (!client_->closed() && !client_->forked()) {
    try {
      client_->request("queue_close", {{"index", std::to_string(index_)}});  // answered when no thread looks at it
      released = true;
    } catch (const Failure&) {
      released = client_->server_gone();
    }
  }
  reap();
  completed_at_close_ = view_.header->completed.load(std::memory_order_acquire);
  progress_->closed.store(true, std::memory_order_release);
  if (released) client_->free_region(region_);
}

void Queue::reap() {
  const uint64_t completed = std::min(view_.header->completed.load(std::memory_order_acquire), tail_);
  // The records are other cache lines, and only failures make them worth a look.
  if (view_.header->failed.load(std::memory_order_relaxed) == failures_read_) [[likely]] {
    reaped_ = completed;
    return;
  }
  while (reaped_ < completed) {
    const Completion& record = view_.completions[reaped_ & view_.mask];
    ++reaped_;
    if (record.status == POLYMUX_OK) [[likely]]
      continue;
    ++failures_read_;
    if (errors_.size() >= 4096) errors_.erase(errors_.begin());  // nobody has asked for so many
    TaskError error{static_cast<polymux_status>(record.status), {}, false};
    if (record.error < kErrorSlots) {
      const ErrorSlot& slot = view_.errors[record.error];
      if (slot.sequence == reaped_) error.text.assign(slot.text, std::min(slot.nbytes, kErrorTextBytes));
    }
    if (error.text.empty()) error.text = "the text was overwritten by those of later failures";
    errors_.emplace(reaped_, std::move(error));
  }
}

void Queue::wait_for_room() {
  if (closed()) throw Failure(POLYMUX_CLOSED, "queue " + name_ + " is closed");
  reap();
  while (tail_ - reaped_ >= capacity_) {
    if (raise_when_full_) {
      throw Failure(POLYMUX_QUEUE_FULL, "queue " + name_ + " has " + std::to_string(capacity_) +
                                            " tasks in flight; wait for some, or open it with a larger capacity");
    }
    if (wait_done(reaped_ + 1, -1) == POLYMUX_SERVER_GONE) throw Failure(POLYMUX_SERVER_GONE, "the server is gone");
    // One place is enough to go on, but who follows the server at the distance of one place makes both of them wait for
    // each other's cache lines at every task.
    for (Spin spin(kRefillNs); !done(reaped_ + capacity_ / 8) && spin.again(Progress::kMostMoments);) {
    }
    if (closed()) throw Failure(POLYMUX_CLOSED, "queue " + name_ + " is closed");
    reap();
  }
}

// Once for each time that a thread has gone to sleep: it looks at all rings before it sleeps again.
void Queue::ring_doorbell(uint64_t sleepers) {
  if (client_->rung_.load(std::memory_order_relaxed) == sleepers) return;
  SegmentHeader* h = client_->header();
  h->doorbell.fetch_add(1, std::memory_order_seq_cst);
  futex_wake_all(&h->doorbell);
  client_->rung_.store(sleepers, std::memory_order_relaxed);
}

polymux_status Queue::wait_done(uint64_t sequence, int64_t timeout_ns, int64_t spin_ns) const {
  return client_->wait_progress(*progress_, sequence, timeout_ns, spin_ns);
}

TaskError* Queue::error(uint64_t sequence) {
  if (closed()) {
    if (sequence > completed_at_close_) return &cancelled_;
  } else {
    reap();
  }
  const auto found = errors_.find(sequence);
  if (found == errors_.end()) return nullptr;
  found->second.observed = true;
  return &found->second;
}

std::pair<uint64_t, const TaskError*> Queue::first_unobserved() {
  if (!closed()) reap();
  std::pair<uint64_t, TaskError*> first{0, nullptr};
  for (auto& [sequence, error] : errors_) {
    if (!error.observed && (first.second == nullptr || sequence < first.first)) first = {sequence, &error};
    error.observed = true;
  }
  return first;
}

}  // namespace polymux
