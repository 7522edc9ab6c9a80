// What an accelerator thread runs: takes tasks from the queues that are bound to its stream, runs native kernels at
// once and hands everything else to its caller.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "bound_queues.hpp"
#include "clock.hpp"
#include "native_table.hpp"
#include "segment.hpp"

namespace polymux {

struct TraceRecord {
  uint32_t queue;  // number of the name in Worker::trace_names()
  uint32_t kernel;
  uint64_t sequence;
  int64_t submitted_ns;  // what the client says, within reason
  int64_t start_ns;
  int64_t end_ns;
};

// A task in the hands of the caller.
struct TaskRecord {
  std::string queue;
  std::shared_ptr<Segment> segment;
  CheckedTask task;
  uint64_t start_cycles;
  bool done = false;
};

struct QueueStats {
  uint64_t tasks = 0;
  int64_t busy_ns = 0;
  int64_t waiting_ns = 0;  // from submit to start, summed over the tasks
  uint64_t failed = 0;     // of the tasks: those that ended with an error
};

struct WorkerStats {
  uint64_t tasks;
  uint64_t native_tasks;
  int64_t busy_ns;
  int64_t waiting_ns;
  std::unordered_map<std::string, QueueStats> queues;
};

class Worker {
 public:
  enum class Kind { task, released, woken, violation, idle, wanted, drained };
  struct Next {
    Kind kind;
    std::shared_ptr<TaskRecord> task = nullptr;
    std::string queue = {};
    std::string message = {};
    QueueStats stats = {};  // of the released queue, while it was bound here
    Hints hints = {};       // of "wanted": the most urgent task
    uint32_t weight = 0;    // of "wanted": of the groups that have tasks of that priority
  };

  Worker(uint32_t location, std::shared_ptr<NativeTable> natives, int64_t spin_ns, uint32_t trace_capacity,
         uint32_t threads);

  // From any thread; take effect at the next task boundary.
  struct Binding {
    int32_t priority = 0;
    bool native = true;  // false: hand out every task
    uint64_t group = 0;  // whose queues share the stream as one
    uint32_t weight = kNormalWeight;
  };
  void bind(std::shared_ptr<Segment> segment, uint32_t index, std::string queue, const Binding& binding);
  // A "released" follows when nobody has tasks of it in hand any more, unless its thread gives it up before. False: it
  // is not bound here (any more), and nothing follows.
  bool unbind(const std::string& queue);
  void weigh(std::string queue, uint32_t weight);
  void hold(std::string queue);
  void resume(std::string queue);
  void fail_head(std::string queue, int32_t status, std::string message);
  void wake();

  // A guarded device is used by others as well, and its tasks wait until they are let in. The thread hears "wanted"
  // when there is a task (again when there is a more urgent one) and "drained" when it has none any more. When it was
  // told to leave it hears one of the two as soon as no task is in hand. To begin with a guarded stream is in.
  void guard(bool on);
  void let_in();
  void leave();

  // Only from the accelerator thread.
  // block false: "idle" instead of sleeping, for a caller that has tasks in hand. Tasks of one queue may be in hand
  // together; they end in order. most: tasks without a caller that run before a caller that does not want to sleep
  // gets its turn.
  static constexpr uint32_t kMostAtOnce = 16;
  Next next(bool block = true, uint32_t most = kMostAtOnce);
  void complete(TaskRecord* task, int32_t status, const std::string& message);
  // Back to the head of its queue, which is held until whoever decides says resume, fail_head or unbind.
  void put_back(TaskRecord* task);
  // Back to the head of its queue, which is let go of at once: no "released" follows.
  QueueStats give_up(TaskRecord* task);
  // Ends all tasks in hand with a status, for a caller that has lost count of them; their records mean nothing then.
  void fail_in_hand(int32_t status, const std::string& message);
  // Lets the next native tasks of a queue that use these buffers only, at most `uses` of them, run without the caller,
  // who keeps the buffers where they are until it recalls them. Both do nothing for a queue that is not bound here.
  void grant(const std::string& queue, std::vector<GrantedBuffer> buffers, uint32_t uses);
  void recall(const std::string& queue);

  WorkerStats stats();  // of the queues bound now
  std::vector<TraceRecord> drain_trace();
  std::vector<std::string> trace_names();
  uint64_t trace_dropped() const { return trace_dropped_.load(std::memory_order_relaxed); }

 private:
  struct Change {
    enum class Kind { bind, unbind, weigh, hold, resume, fail_head, guard, let_in, leave } kind;
    std::string queue;
    std::unique_ptr<BoundQueue> bound = nullptr;
    uint64_t number = 0;  // group, weight, status or whether it is guarded
    std::string message = {};
  };

  void post(Change change);
  void apply_changes();
  void apply_bind(std::unique_ptr<BoundQueue> bound, uint64_t group);
  QueueStats remove(BoundQueue* bound);
  void release(BoundQueue* bound);
  BoundQueue* holder(const TaskRecord& record);
  void take_back(TaskRecord* record, BoundQueue* bound);
  bool anything_to_do();
  bool spin_for_task();
  void sleep();
  std::optional<Next> at_gate(bool block);
  void apply_gate(const Change& change);
  bool run_native(BoundQueue& bound, CheckedTask& task);
  bool find_data(BoundQueue& bound, const CheckedTask& task, unsigned char** data) const;
  void finish(BoundQueue& bound, const TaskHeader& task, int32_t status, const char* text, size_t nbytes,
              uint64_t start);
  QueueStats stats_of(const BoundQueue& bound, double ns_per_cycle) const;

  const uint32_t location_;
  const std::shared_ptr<NativeTable> natives_;
  const int64_t spin_ns_;
  const uint32_t threads_;
  CycleClock clock_;

  enum class Gate { out, asked, in, leaving };

  BoundQueues bound_;  // the accelerator thread's alone
  bool guarded_ = false;
  Gate gate_ = Gate::in;
  Hints asked_ = {};
  std::vector<std::pair<std::string, QueueStats>> released_;
  CheckedTask scratch_;
  uint64_t last_end_ = 0;    // of a task, in cycles
  int64_t last_end_ns_ = 0;  // as the timeline has it

  std::mutex mutex_;  // guards what other threads write
  std::vector<Change> changes_;
  std::unordered_set<std::string> wanted_;  // bound, or about to be, and not asked for
  std::atomic<bool> changed_{false};
  std::atomic<bool> woken_{false};
  std::atomic<uint32_t> bell_{0};
  std::atomic<bool> asleep_{false};

  std::mutex stats_mutex_;
  std::atomic<uint64_t> tasks_{0}, native_tasks_{0}, busy_cycles_{0}, waiting_cycles_{0};

  const uint32_t trace_capacity_;
  std::vector<TraceRecord> trace_;
  size_t trace_oldest_ = 0;  // where the next record goes when it is full
  std::vector<std::string> trace_names_;
  std::atomic<uint64_t> trace_dropped_{0};
};

}  // namespace polymux
