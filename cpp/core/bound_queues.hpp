// The queues that are bound to one stream, and which of them is next.
//
// The highest priority (the queue's plus the task's) goes first. Among equals the queues of different groups (sessions)
// share the stream by start-time fair queuing (Goyal, Vin, Cheng, SIGCOMM 1996), with the measured time of a task as
// its length: each group has a virtual time that grows by busy time / weight, and the least goes first. Within a group
// it is the earliest deadline, then whose turn it is.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "segment.hpp"

namespace polymux {

struct FairGroup {
  uint64_t id;
  double virtual_time = 0;  // cycles at the normal weight
  uint64_t last_seen = 0;   // the choice in which it last had a task
  bool joining = false;
  uint32_t n_queues = 0;
};

// A buffer that its device has in memory that the processor reaches, and that stays there until it is recalled.
struct GrantedBuffer {
  uint32_t slot;
  uint16_t generation;
  uint8_t access;
  uint64_t nbytes;
  unsigned char* data;
};

struct BoundQueue {
  std::string queue;
  std::shared_ptr<Segment> segment;
  std::shared_ptr<ServerQueue> ring;
  int32_t priority;
  bool native;
  bool held = false;
  bool broken = false;
  bool leaving = false;  // to be released when nobody has a task of it in hand any more
  bool ready = false;    // what the last choice found
  uint64_t last_chosen = 0;
  uint32_t in_hand = 0;  // tasks that the caller has and has not ended
  uint32_t trace_name = 0;
  uint64_t seen = 0;  // what available() found in the slot of the next task
  FairGroup* group = nullptr;
  double cost = 1;                 // virtual time of one cycle
  std::atomic<uint64_t> tasks{0};  // written by the accelerator thread, read by statistics
  std::atomic<uint64_t> busy_cycles{0};
  std::atomic<uint64_t> waiting_cycles{0};
  std::atomic<uint64_t> failed{0};
  std::optional<std::pair<int32_t, std::string>> fail_head;
  std::vector<GrantedBuffer> granted;
  uint32_t uses = 0;  // tasks that may still run on what is granted

  // The memory in which a task finds a buffer; nullptr when that is not granted.
  unsigned char* granted_data(const CheckedRef& ref) const;

  void weigh(uint32_t weight) { cost = static_cast<double>(kNormalWeight) / weight; }
  // Whether its head may be taken now, or is none that can be: then `seen` is not the next task's number.
  bool available();
};

// What a task, with its queue, says of how urgent it is.
struct Hints {
  int32_t priority;
  int64_t deadline_ns;  // INT64_MAX: none

  bool more_urgent_than(const Hints& other) const {
    return priority > other.priority || (priority == other.priority && deadline_ns < other.deadline_ns);
  }
};

class BoundQueues {
 public:
  using Queues = std::vector<std::unique_ptr<BoundQueue>>;

  bool empty() const { return queues_.empty(); }
  Queues::const_iterator begin() const { return queues_.begin(); }
  Queues::const_iterator end() const { return queues_.end(); }
  BoundQueue* find(const std::string& queue) const;

  void add(std::unique_ptr<BoundQueue> queue, uint64_t group);
  std::unique_ptr<BoundQueue> remove(BoundQueue* queue);

  bool any_available() const;
  // The highest priority that a task has, and the earliest deadline.
  std::optional<Hints> most_urgent() const;
  // Of the groups that have a task of a priority, together.
  uint32_t weight_of(int32_t priority) const;
  // nullptr when none has a task.
  BoundQueue* choose();
  void charge(BoundQueue& queue, uint64_t cycles) {
    queue.group->virtual_time += static_cast<double>(cycles) * queue.cost;
  }

 private:
  static Hints hints(const BoundQueue& queue);
  static bool before(const BoundQueue& a, const Hints& of_a, const BoundQueue& b, const Hints& of_b);

  BoundQueue* choose_of_one_group();
  BoundQueue* choose_between_groups();
  void let_groups_join(double least);
  void forget_groups();
  BoundQueue* chosen(size_t at);

  Queues queues_;
  std::vector<std::unique_ptr<FairGroup>> groups_;
  uint32_t n_groups_ = 0;  // that have a queue; the others are remembered for what they have had
  size_t turn_ = 0;
  uint64_t choice_ = 1;
  double now_ = 0;  // virtual time at which the last task that was chosen started
};

}  // namespace polymux
