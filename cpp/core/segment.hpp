// The server's side of one client's segment: it made the memory, and it trusts nothing that it reads there.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include "clock.hpp"
#include "layout.hpp"

namespace polymux {

// Something that the client asked for or wrote is wrong.
struct SegmentError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A private, checked copy of one buffer reference of a task.
struct CheckedRef {
  uint32_t slot;
  uint16_t generation;
  uint8_t access;
  uint8_t location;
  int32_t dtype;
  int32_t ndim;
  uint64_t offset;
  uint64_t nbytes;
  int64_t shape[POLYMUX_MAX_DIMENSIONS];
};

// A private, checked copy of a task descriptor.
struct CheckedTask {
  TaskHeader header;
  CheckedRef refs[POLYMUX_MAX_BUFFERS];
  alignas(16) unsigned char arguments[POLYMUX_MAX_ARGUMENTS];
  polymux_status status;  // why it is refused, or OK
  std::string fault;
};

// The server's own account of one queue region.
struct ServerQueue {
  QueueView view;
  uint32_t capacity = 0;
  uint64_t taken = 0;
  uint64_t completed = 0;
  uint64_t failed = 0;
  const uint64_t opened_cycles = cycles();
  uint64_t served = 0;  // the last wanted sequence that was woken for
  uint32_t next_error = 0;
  std::atomic<bool> open{true};

  // Tasks submitted and not taken, as the client says.
  uint64_t pending() const {
    const uint64_t n = view.header->tail.load(std::memory_order_relaxed) - taken;
    return n <= capacity ? n : 0;
  }
};

class Segment {
 public:
  explicit Segment(uint64_t nbytes);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  int fd() const { return fd_; }
  uint64_t nbytes() const { return nbytes_; }
  unsigned char* base() const { return base_; }
  SegmentHeader* header() const { return reinterpret_cast<SegmentHeader*>(base_); }

  uint32_t open_queue(uint64_t offset, uint32_t capacity);
  void close_queue(uint32_t index);
  std::shared_ptr<ServerQueue> queue(uint32_t index) const;

  // Throws SegmentError unless [offset, offset + nbytes) lies in the data part.
  unsigned char* data(uint64_t offset, uint64_t nbytes) const;
  // The buffer as the client describes it, checked; throws SegmentError.
  CheckedRef buffer(uint32_t slot, uint16_t generation) const;

  // Which memory holds the valid copy: 0 the segment, k the k-th memory of a device.
  uint32_t location(uint32_t slot) const;
  void set_location(uint32_t slot, uint16_t generation, uint32_t location);
  void set_shape(uint32_t slot, uint16_t generation, const std::vector<int64_t>& shape);
  // The buffer's content has its declared shape again.
  void forget_shape(uint32_t slot, uint16_t generation);

  // Tells a job whether it may go on, and on which device; wakes it.
  void set_gate(uint32_t index, uint32_t word, uint32_t device);

  // Puts other memory under a range of pages, or the segment's own again.
  void map_foreign(uint64_t offset, uint64_t nbytes, int fd);
  void unmap_foreign(uint64_t offset, uint64_t nbytes);

  // Copies the descriptor out of shared memory and checks every field; never throws for what the client wrote.
  void read_task(const TaskSlot& slot, uint64_t sequence, CheckedTask* task) const;
  // Publishes the task's end and wakes whoever waits for it.
  void complete(ServerQueue* queue, uint64_t sequence, int32_t status, const char* text, size_t text_nbytes);

  void close() { dead_.store(true, std::memory_order_release); }
  bool dead() const { return dead_.load(std::memory_order_acquire); }

 private:
  struct Placement {  // generation << 16 | location, and whether a result shape is known
    std::atomic<uint32_t> location{0};
    std::atomic<uint32_t> shaped{0};
  };

  bool check_ref(const BufferRef& ref, CheckedRef* out, std::string* fault) const;
  BufferEntry* entry(uint32_t slot) const { return reinterpret_cast<BufferEntry*>(base_ + kTableOffset) + slot; }

  int fd_ = -1;
  uint64_t nbytes_ = 0;
  unsigned char* base_ = nullptr;
  std::atomic<bool> dead_{false};
  Placement* placements_ = nullptr;  // kMaxBuffers, private, taken as it is touched
  mutable std::mutex mutex_;
  std::shared_ptr<ServerQueue> queues_[kMaxQueues];
  std::unordered_map<uint32_t, std::vector<int64_t>> shapes_;
};

}  // namespace polymux
