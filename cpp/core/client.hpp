// What an application links: a connection, its memory, task queues and buffers. The C interface (c_api.cpp) and the
// Python module (cpp/python) are thin layers over these classes.
//
// Threads: allocation and requests are safe from any thread; a queue, and the buffers given to it, belong to one thread
// at a time (in Python the interpreter's lock sees to that). Waiting is safe from any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "allocator.hpp"
#include "layout.hpp"
#include "message.hpp"

namespace polymux {

class Buffer;
class Queue;

// How far a queue has come; outlives the queue, for buffers that it used.
struct Progress {
  static constexpr uint32_t kMostMoments = 32;

  QueueHeader* header;
  std::atomic<bool> closed{false};

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

struct QueueOptions {
  std::string name;
  std::string device;
  int32_t priority = 0;
  uint32_t capacity = 1024;
  bool raise_when_full = false;
};

class Client : public std::enable_shared_from_this<Client> {
 public:
  static std::shared_ptr<Client> connect(const std::string& path, const std::string& name, uint64_t segment_nbytes);
  // Over a connected socket, which it owns from then on.
  static std::shared_ptr<Client> adopt(int socket, const std::string& name, uint64_t segment_nbytes);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Sends a request and waits for its reply. Throws Failure with the server's text.
  Message request(const std::string& verb, Fields fields, const std::vector<int>& fds = {});
  void notify(const std::string& verb, const Fields& fields);  // no reply; failures are ignored
  bool server_gone() const;
  bool closed() const { return closed_.load(std::memory_order_acquire); }
  // Ends the connection. Memory stays mapped as long as a buffer or a view of one lives.
  void close();
  void check_open() const;

  std::shared_ptr<Queue> open_queue(const QueueOptions& options);
  std::shared_ptr<Buffer> allocate(int32_t dtype, const std::vector<int64_t>& shape, bool shareable);
  std::shared_ptr<Buffer> import_buffer(const std::string& token);

  uint32_t kernel_id(const std::string& name);
  // Number for Hints::device; throws for a name that the server does not have.
  uint32_t device_hint(const std::string& device) const;

  // For a thread that waits for tasks of several queues: read the value, want them all, look, sleep on the value.
  uint32_t completion_value() const { return header()->completion.load(std::memory_order_seq_cst); }
  bool completion_wait(uint32_t value, int64_t timeout_ns);

  // Brings home every idle buffer that has a live view and is away. False when the time is over.
  bool bring_views_home(int64_t timeout_ns);
  bool anything_away() const { return header()->away.load(std::memory_order_acquire) != 0; }

  SegmentHeader* header() const { return reinterpret_cast<SegmentHeader*>(base_); }
  unsigned char* base() const { return base_; }
  BufferEntry* entry(uint32_t slot) const { return reinterpret_cast<BufferEntry*>(base_ + kTableOffset) + slot; }
  const std::string& session() const { return session_; }
  const std::vector<std::string>& devices() const { return devices_; }
  uint64_t segment_nbytes() const { return nbytes_; }
  Allocator::Stats memory() const;

  std::shared_ptr<void> attachment;  // a language binding's own

 private:
  friend class Buffer;
  friend class Queue;
  using Use = std::pair<std::shared_ptr<Progress>, uint64_t>;
  struct Leaving {  // a freed buffer that tasks still use
    uint32_t slot;
    uint64_t offset;
    uint64_t block_nbytes;
    bool foreign;
    std::vector<Use> uses;
  };

  Client(int socket, const std::string& name, uint64_t segment_nbytes);
  void map_segment(const Message& reply);
  bool forked() const;
  uint64_t allocate_block(uint64_t nbytes, uint64_t alignment);
  uint32_t take_slot();
  void free_buffer(Buffer* buffer);
  void collect();
  void give_back(std::vector<Leaving> leavings);
  bool unshare(const Leaving& leaving);
  void free_region(uint64_t offset);
  std::shared_ptr<Queue> queue_for(const Progress* progress);
  polymux_status wait_progress(Progress& progress, uint64_t sequence, int64_t timeout_ns, int64_t spin_ns);

  const int pid_;  // a fork of the application must connect for itself
  int socket_ = -1;
  int segment_fd_ = -1;
  unsigned char* base_ = nullptr;
  uint64_t nbytes_ = 0;
  std::string session_;
  std::vector<std::string> devices_;
  std::atomic<bool> closed_{false};
  std::atomic<uint64_t> rung_{0};  // the value of `sleepers` that the doorbell was last rung for
  mutable std::atomic<bool> gone_{false};

  std::mutex request_mutex_;
  uint64_t request_id_ = 0;

  mutable std::mutex memory_mutex_;
  std::unique_ptr<Allocator> allocator_;
  std::vector<uint32_t> free_slots_;
  uint32_t next_slot_ = 0;
  std::vector<Leaving> leaving_;
  std::vector<Buffer*> viewed_;
  std::vector<std::weak_ptr<Queue>> queues_;
  std::unordered_map<std::string, uint32_t> kernels_;
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

class Buffer : public std::enable_shared_from_this<Buffer> {
 public:
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  // Waits for the tasks that use it. False when the time is over.
  bool wait(int64_t timeout_ns) const;
  bool idle() const;
  // Waits and brings the valid copy into the segment.
  bool bring_home(int64_t timeout_ns);
  bool away() const;
  // Its memory is free for others when the tasks that use it are done and its last view is gone.
  void close();
  std::string export_buffer();
  void revoke();

  unsigned char* data() const { return client_->base() + offset_; }
  // The result's shape when a task has reported one.
  std::vector<int64_t> shape() const;
  std::vector<int64_t> declared_shape() const { return {shape_.begin(), shape_.begin() + ndim_}; }
  int32_t dtype() const { return dtype_; }
  uint64_t nbytes() const { return nbytes_; }
  uint32_t slot() const { return slot_; }
  uint16_t generation() const { return generation_; }
  bool closed() const { return closed_; }
  const std::shared_ptr<Client>& client() const { return client_; }
  void check_open() const;
  void add_view();
  void drop_view();
  int views() const { return views_; }

 private:
  friend class Client;
  friend class Queue;
  Buffer(std::shared_ptr<Client> client, int32_t dtype, const std::vector<int64_t>& shape, uint64_t nbytes);
  void publish();
  void used_by_another(const std::shared_ptr<Progress>& progress, uint64_t sequence);

  std::shared_ptr<Client> client_;
  uint32_t slot_ = 0;
  uint16_t generation_ = 0;
  bool foreign_ = false;
  bool closed_ = true;  // until it has memory
  bool freed_ = true;
  int32_t dtype_;
  int32_t ndim_;
  int views_ = 0;
  std::array<int64_t, POLYMUX_MAX_DIMENSIONS> shape_{};
  uint64_t nbytes_;
  uint64_t offset_ = 0;
  uint64_t block_nbytes_ = 0;
  std::shared_ptr<Progress> last_progress_;
  uint64_t last_sequence_ = 0;
  std::vector<Client::Use> other_uses_;
  std::string token_;
};

inline uint64_t Queue::submit(uint32_t kernel, uint32_t n_buffers, Buffer* const* buffers, const uint8_t* accesses,
                              const void* arguments, uint32_t arguments_nbytes, const Hints& hints) {
  if (tail_ - reaped_ >= capacity_ || closed()) [[unlikely]]
    wait_for_room();
  const uint64_t sequence = tail_ + 1;
  TaskSlot& slot = view_.slots[tail_ & view_.mask];
  slot.header = {kernel,
                 static_cast<uint16_t>(arguments_nbytes),
                 static_cast<uint8_t>(n_buffers),
                 0,
                 sequence,
                 hints.deadline_ns,
                 static_cast<int8_t>(hints.priority),
                 static_cast<uint8_t>(hints.share),
                 static_cast<uint16_t>(hints.device),
                 0};
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
  view_.header->tail.store(sequence, std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const uint64_t sleepers = client_->header()->sleepers.load(std::memory_order_relaxed);
  if ((sleepers & kSleeperMask) != 0) [[unlikely]]
    ring_doorbell(sleepers);
  return sequence;
}

}  // namespace polymux
