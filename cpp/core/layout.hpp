// What lies where in a client's segment. The server writes the header once; the client verifies it and then owns
// everything that is not marked as the server's. Only offsets are stored, never pointers, and the server copies every
// field before it checks and uses it.
//
//   0            SegmentHeader
//   1024         JobGate[kMaxJobs]
//   4096         BufferEntry[kMaxBuffers]
//   data_offset  the client's allocator: buffers and queue regions
//
// A queue region (its offset and capacity are told to the server when the queue is opened):
//   QueueHeader | ErrorSlot[kErrorSlots] | Completion[capacity] | TaskSlot[capacity]
//
// Task n of a queue (1, 2, ...) goes into slot (n - 1) % capacity as soon as task n - capacity is completed. Its
// sequence is written last: so the slot itself says that the task is there, and a small task travels
// from one core to the other in a single cache line. Before that, the slot's sequence is the one of the lap before, or
// 0: the client zeroes the first slot when it opens the queue, and in the first lap each next slot before it publishes
// a task. Any other value is a client gone wrong.
#pragma once

#include <atomic>
#include <cstdint>

#include "polymux.h"

namespace polymux {

inline constexpr uint64_t kMagic = 0x0058554D594C4F50;  // "POLYMUX"
inline constexpr uint32_t kLayoutVersion = 2;
inline constexpr uint32_t kProtocolVersion = 2;
inline constexpr uint64_t kPageBytes = 4096;
inline constexpr uint32_t kMaxBuffers = 65536;
inline constexpr uint32_t kMaxQueues = 256;
inline constexpr uint32_t kMinCapacity = 16;
inline constexpr uint32_t kMaxCapacity = 65536;
inline constexpr uint32_t kMaxJobs = 16;
inline constexpr uint32_t kErrorSlots = 32;
inline constexpr uint32_t kErrorTextBytes = 1012;
inline constexpr uint32_t kNoError = 0xFFFFFFFF;

// What an application weighs against others of the same priority, in per cent.
inline constexpr uint32_t kNormalWeight = 100;
inline constexpr uint32_t kMaxWeight = 10'000;

// Kernels that every server has and that no table holds.
inline constexpr uint32_t kBarrierKernel = 0;  // nothing; done when all earlier tasks of its queue are
inline constexpr uint32_t kToHostKernel = 1;   // brings the valid copies of its buffers to the segment

struct SegmentHeader {
  uint64_t magic;
  uint32_t layout_version;
  uint32_t max_buffers;
  uint64_t nbytes;
  uint64_t table_offset;
  uint64_t data_offset;
  alignas(128) std::atomic<uint32_t> doorbell;    // client: rung after a submit while somebody sleeps
  alignas(128) std::atomic<uint64_t> sleepers;    // server: times slept << 8 | threads asleep on the doorbell
  std::atomic<uint32_t> away;                     // server: buffers whose valid copy is not in the segment
  alignas(128) std::atomic<uint32_t> completion;  // server: changed when a completion is wanted
};
inline constexpr uint64_t kGatesOffset = 1024;
static_assert(sizeof(SegmentHeader) <= kGatesOffset);

// What a job, which uses a device by itself, looks at between two parts of its work: whether it may go on, and where.
struct alignas(128) JobGate {
  std::atomic<uint32_t> word;  // server: a kGate value; client: kGateServerGone
  uint32_t device;             // server, before `word`: number of the device that the job has
};
static_assert(kGatesOffset + kMaxJobs * sizeof(JobGate) <= kPageBytes);

// The lowest bits of the word say what to do; those above change whenever it is said anew.
inline constexpr uint32_t kGateOpen = 0;        // go on
inline constexpr uint32_t kGateBoundary = 1;    // give way at the next boundary
inline constexpr uint32_t kGateStep = 2;        // give way at the end of the run
inline constexpr uint32_t kGateOver = 3;        // the lease is over
inline constexpr uint32_t kGateServerGone = 4;  // nobody watches the device any more
inline constexpr uint32_t kGateBits = 3;

struct BufferEntry {
  uint32_t generation;  // client; a reference with another one is stale
  int32_t dtype;
  int32_t ndim;
  uint32_t reserved;
  uint64_t offset;
  uint64_t nbytes;
  int64_t shape[POLYMUX_MAX_DIMENSIONS];
  alignas(128) std::atomic<uint32_t> location;  // server: generation << 16 | memory that holds the valid copy
  std::atomic<uint32_t> shaped;                 // server: generation << 16 | 1 when result_* below are set
  int32_t result_ndim;
  int64_t result_shape[POLYMUX_MAX_DIMENSIONS];
};
static_assert(sizeof(BufferEntry) == 256);

struct BufferRef {
  uint32_t slot;
  uint16_t generation;
  uint8_t access;
  uint8_t reserved;
};
static_assert(sizeof(BufferRef) == 8);

struct TaskHeader {
  uint32_t kernel;
  uint16_t arguments_nbytes;
  uint8_t n_buffers;
  uint8_t flags;
  uint64_t sequence;  // read and written through QueueView::published() and publish()
  int64_t deadline_ns;
  int8_t priority;
  uint8_t share;
  uint16_t device;
  uint32_t submitted;  // when, as stamp_of() says
};
static_assert(sizeof(TaskHeader) == 32);

// References and arguments follow the header without a gap, so that a small task is one cache line.
struct alignas(64) TaskSlot {
  TaskHeader header;
  unsigned char payload[POLYMUX_MAX_BUFFERS * sizeof(BufferRef) + POLYMUX_MAX_ARGUMENTS];
};
static_assert(sizeof(TaskSlot) == 448);

struct Completion {
  uint64_t sequence;
  int32_t status;
  uint32_t error;  // index of the error slot, or kNoError
};
static_assert(sizeof(Completion) == 16);

struct ErrorSlot {
  uint64_t sequence;
  uint32_t nbytes;
  char text[kErrorTextBytes];
};
static_assert(sizeof(ErrorSlot) == 1024);

struct QueueHeader {
  alignas(128) std::atomic<uint64_t> tail;       // client: tasks submitted, for whoever counts them
  alignas(128) std::atomic<uint64_t> taken;      // server: tasks taken
  alignas(128) std::atomic<uint64_t> completed;  // server: tasks completed
  std::atomic<uint64_t> failed;                  // server: those of them that failed; written before `completed`
  alignas(128) std::atomic<uint64_t> wanted;     // client: the next sequence that somebody sleeps for; 0: none yet
};
static_assert(sizeof(QueueHeader) == 512);

inline constexpr uint64_t kSleeperMask = 0xFF;
inline constexpr uint64_t kSleepOnce = 0x101;  // one more thread asleep, one more time

inline constexpr uint64_t kTableOffset = kPageBytes;
inline constexpr uint64_t kDataOffset = kTableOffset + uint64_t{kMaxBuffers} * sizeof(BufferEntry);
inline constexpr uint64_t kMinSegmentBytes = kDataOffset + (uint64_t{1} << 20);
inline constexpr uint64_t kErrorsInQueue = sizeof(QueueHeader);
inline constexpr uint64_t kCompletionsInQueue = kErrorsInQueue + kErrorSlots * sizeof(ErrorSlot);

constexpr uint64_t slots_in_queue(uint32_t capacity) {
  return (kCompletionsInQueue + uint64_t{capacity} * sizeof(Completion) + 63) / 64 * 64;
}
constexpr uint64_t queue_nbytes(uint32_t capacity) {
  return slots_in_queue(capacity) + uint64_t{capacity} * sizeof(TaskSlot);
}
constexpr bool valid_capacity(uint32_t capacity) {
  return capacity >= kMinCapacity && capacity <= kMaxCapacity && (capacity & (capacity - 1)) == 0;
}

// 0 for a number that is no dtype.
constexpr uint32_t dtype_nbytes(int32_t dtype) {
  constexpr uint32_t sizes[] = {1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8, 2, 8, 16};
  return dtype >= 0 && dtype < static_cast<int32_t>(sizeof(sizes) / sizeof(sizes[0])) ? sizes[dtype] : 0;
}

// Bytes of an array, or false when the shape is negative or the product overflows.
constexpr bool array_nbytes(int32_t dtype, int32_t ndim, const int64_t* shape, uint64_t* nbytes) {
  if (ndim < 0 || ndim > POLYMUX_MAX_DIMENSIONS || dtype_nbytes(dtype) == 0) return false;
  uint64_t total = dtype_nbytes(dtype);
  for (int32_t i = 0; i < ndim; ++i) {
    if (shape[i] < 0 || __builtin_mul_overflow(total, static_cast<uint64_t>(shape[i]), &total)) return false;
  }
  *nbytes = total;
  return total <= (uint64_t{1} << 62);
}

// One queue region as both sides see it through their own mapping.
struct QueueView {
  QueueHeader* header = nullptr;
  ErrorSlot* errors = nullptr;
  Completion* completions = nullptr;
  TaskSlot* slots = nullptr;
  uint32_t mask = 0;

  QueueView() = default;
  QueueView(unsigned char* region, uint32_t capacity)
      : header(reinterpret_cast<QueueHeader*>(region)),
        errors(reinterpret_cast<ErrorSlot*>(region + kErrorsInQueue)),
        completions(reinterpret_cast<Completion*>(region + kCompletionsInQueue)),
        slots(reinterpret_cast<TaskSlot*>(region + slots_in_queue(capacity))),
        mask(capacity - 1) {}

  TaskSlot& slot(uint64_t sequence) const { return slots[(sequence - 1) & mask]; }
  // What the slot of a task says that is in it.
  uint64_t published(uint64_t sequence) const {
    return std::atomic_ref(slot(sequence).header.sequence).load(std::memory_order_acquire);
  }
  // Whether a slot can say so before the task is there.
  bool vacant(uint64_t published, uint64_t sequence) const {
    return published == 0 || published + mask + 1 == sequence;
  }
  void publish(uint64_t sequence) const {
    if (sequence <= mask) std::atomic_ref(slot(sequence + 1).header.sequence).store(0, std::memory_order_relaxed);
    std::atomic_ref(slot(sequence).header.sequence).store(sequence, std::memory_order_release);
  }
};

}  // namespace polymux
