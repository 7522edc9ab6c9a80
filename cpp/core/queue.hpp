// A task queue of the application: one ring in the segment, of which it is the only producer.
#pragma once

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "buffer.hpp"
#include "client.hpp"
#include "clock.hpp"
#include "layout.hpp"
#include "progress.hpp"

namespace polymux {

struct Hints {
  int64_t deadline_ns = 0;
  int32_t priority = 0;
  uint32_t share = 0;
  uint32_t device = 0;
};

struct TaskError {
  polymux_status status;
  std::string text;
  bool observed = false;
};

class Queue : public std::enable_shared_from_this<Queue> {
 public:
  Queue(std::shared_ptr<Client> client, const QueueOptions& options);
  ~Queue();

  // Returns the task's sequence number. Throws Failure: QUEUE_FULL, CLOSED, SERVER_GONE.
  uint64_t submit(uint32_t kernel, uint32_t n_buffers, Buffer* const* buffers, const uint8_t* accesses,
                  const void* arguments, uint32_t arguments_nbytes, const Hints& hints);
  // False when it would have to wait; reaps what is done.
  bool has_room() {
    if (tail_ - reaped_ < capacity_) return true;
    reap();
    return tail_ - reaped_ < capacity_;
  }

  bool done(uint64_t sequence) const { return progress_->done(sequence); }
  void want(uint64_t sequence) { progress_->want(sequence); }
  // OK when done, else TIMEOUT or SERVER_GONE; changes nothing of the queue.
  polymux_status wait_done(uint64_t sequence, int64_t timeout_ns, int64_t spin_ns = 20'000) const;
  // Of a task that is done; nullptr when it succeeded.
  TaskError* error(uint64_t sequence);
  // The first failure that nobody has looked at, and its sequence; forgets them all.
  std::pair<uint64_t, const TaskError*> first_unobserved();
  void forget_errors() { errors_.clear(); }

  void close();
  bool closed() const { return progress_->closed.load(std::memory_order_acquire); }
  uint64_t tail() const { return tail_; }
  uint32_t capacity() const { return capacity_; }
  uint64_t in_flight() const { return closed() ? 0 : tail_ - view_.header->completed.load(std::memory_order_acquire); }
  bool raise_when_full() const { return raise_when_full_; }
  const std::string& id() const { return id_; }
  const std::string& name() const { return name_; }
  const std::shared_ptr<Client>& client() const { return client_; }

 private:
  friend class Client;
  void reap();
  void wait_for_room();
  void ring_doorbell(uint64_t sleepers);

  std::shared_ptr<Client> client_;
  QueueView view_;
  uint64_t tail_ = 0;
  uint64_t reaped_ = 0;
  uint64_t failures_read_ = 0;
  uint32_t capacity_;
  bool raise_when_full_;
  std::shared_ptr<Progress> progress_;
  uint32_t index_ = 0;
  uint64_t region_ = 0;
  std::string id_, name_;
  uint64_t completed_at_close_ = UINT64_MAX;
  std::map<uint64_t, TaskError> errors_;
  TaskError cancelled_{POLYMUX_CANCELLED, "the queue was closed before the task ran", true};
};

inline uint64_t Queue::submit(uint32_t kernel, uint32_t n_buffers, Buffer* const* buffers, const uint8_t* accesses,
                              const void* arguments, uint32_t arguments_nbytes, const Hints& hints) {
  if (tail_ - reaped_ >= capacity_ || closed()) [[unlikely]]
    wait_for_room();
  const uint64_t sequence = tail_ + 1;
  TaskSlot& slot = view_.slot(sequence);
  TaskHeader& header = slot.header;
  header.kernel = kernel;
  header.arguments_nbytes = static_cast<uint16_t>(arguments_nbytes);
  header.n_buffers = static_cast<uint8_t>(n_buffers);
  header.flags = 0;
  header.deadline_ns = hints.deadline_ns;
  header.priority = static_cast<int8_t>(hints.priority);
  header.share = static_cast<uint8_t>(hints.share);
  header.device = static_cast<uint16_t>(hints.device);
  header.submitted = stamp_of(cycles());
  auto* refs = reinterpret_cast<BufferRef*>(slot.payload);
  for (uint32_t i = 0; i < n_buffers; ++i) {
    Buffer* b = buffers[i];
    refs[i] = {b->slot_, b->generation_, accesses[i], 0};
    if (b->last_progress_.get() == progress_.get()) [[likely]] {
      b->last_sequence_ = sequence;
    } else {
      b->used_by_another(progress_, sequence);
    }
  }
  std::memcpy(refs + n_buffers, arguments, arguments_nbytes);
  tail_ = sequence;
  view_.publish(sequence);
  view_.header->tail.store(sequence, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const uint64_t sleepers = client_->header()->sleepers.load(std::memory_order_relaxed);
  if ((sleepers & kSleeperMask) != 0) [[unlikely]]
    ring_doorbell(sleepers);
  return sequence;
}

}  // namespace polymux
