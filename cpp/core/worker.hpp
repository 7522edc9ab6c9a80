// What an accelerator thread runs: takes tasks from the queues that are bound to its stream, runs native kernels at
// once and hands everything else to its caller.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "clock.hpp"
#include "segment.hpp"

namespace polymux {

// The native kernels that may run without asking: address and what their calls must look like. Shared by workers;
// entries are replaced, never changed, so that readers need no lock.
class NativeTable {
 public:
  struct Kernel {
    polymux_kernel_fn function;
    uint32_t n_inputs;
    uint32_t n_outputs;
    bool variadic;
    uint32_t arguments_nbytes;
    std::vector<uint32_t> dtype_masks;  // inputs, then outputs; 0: any
  };
  static constexpr uint32_t kSize = 4096;

  void set(uint32_t id, Kernel kernel);
  void clear(uint32_t id);
  const Kernel* find(uint32_t id) const { return id < kSize ? table_[id].load(std::memory_order_acquire) : nullptr; }

 private:
  std::mutex mutex_;
  std::atomic<const Kernel*> table_[kSize] = {};
  std::vector<std::unique_ptr<Kernel>> kept_;  // also the replaced ones: a worker may still look at them
};

struct TraceRecord {
  uint32_t queue;  // number of the name in Worker::trace_names()
  uint32_t kernel;
  uint64_t sequence;
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
};

struct WorkerStats {
  uint64_t tasks;
  uint64_t native_tasks;
  int64_t busy_ns;
  std::unordered_map<std::string, QueueStats> queues;
};

class Worker {
 public:
  enum class Kind { task, released, woken, violation };
  struct Next {
    Kind kind;
    std::shared_ptr<TaskRecord> task;
    std::string queue;
    std::string message;
    QueueStats stats;  // of the released queue, while it was bound here
  };

  Worker(uint32_t location, std::shared_ptr<NativeTable> natives, int64_t spin_ns, uint32_t trace_capacity,
         uint32_t threads);

  // From any thread; take effect at the next task boundary. native false: hand out every task.
  void bind(std::shared_ptr<Segment> segment, uint32_t index, std::string queue, int32_t priority, bool native);
  void unbind(std::string queue);
  void hold(std::string queue);
  void resume(std::string queue);
  void fail_head(std::string queue, int32_t status, std::string message);
  void wake();

  // Only from the accelerator thread.
  Next next();
  void complete(TaskRecord* task, int32_t status, const std::string& message);
  void put_back(TaskRecord* task);

  WorkerStats stats();  // of the queues bound now
  std::vector<TraceRecord> drain_trace();
  std::vector<std::string> trace_names();
  uint64_t trace_dropped() const { return trace_dropped_.load(std::memory_order_relaxed); }

 private:
  struct Bound {
    std::string queue;
    std::shared_ptr<Segment> segment;
    std::shared_ptr<ServerQueue> ring;
    int32_t priority;
    bool native;
    bool held = false;
    bool broken = false;
    uint64_t tail = 0;  // as last seen
    uint32_t trace_name = 0;
    std::atomic<uint64_t> tasks{0};  // written by the accelerator thread, read by stats()
    std::atomic<uint64_t> busy_cycles{0};
    std::optional<std::pair<int32_t, std::string>> fail_head;
  };
  struct Change {
    enum class Kind { bind, unbind, hold, resume, fail_head } kind;
    std::string queue;
    std::unique_ptr<Bound> bound;
    int32_t status = 0;
    std::string message;
  };

  void post(Change change);
  bool apply_changes();
  Bound* find(const std::string& queue);
  bool available(Bound& bound);
  bool anything_to_do();
  Bound* choose();
  void sleep();
  bool run_native(Bound& bound, CheckedTask& task);
  void finish(Bound& bound, uint64_t sequence, uint32_t kernel, int32_t status, const char* text, size_t nbytes,
              uint64_t start);

  const uint32_t location_;
  const std::shared_ptr<NativeTable> natives_;
  const int64_t spin_ns_;
  const uint32_t threads_;
  CycleClock clock_;

  std::vector<std::unique_ptr<Bound>> bound_;  // the accelerator thread's alone
  std::vector<std::pair<std::string, QueueStats>> released_;
  size_t turn_ = 0;
  CheckedTask scratch_;

  std::mutex mutex_;  // guards what other threads write
  std::vector<Change> changes_;
  std::atomic<bool> changed_{false};
  std::atomic<bool> woken_{false};
  std::atomic<uint32_t> bell_{0};
  std::atomic<bool> asleep_{false};

  std::mutex stats_mutex_;
  std::atomic<uint64_t> tasks_{0}, native_tasks_{0}, busy_cycles_{0};

  const uint32_t trace_capacity_;
  std::vector<TraceRecord> trace_;
  std::vector<std::string> trace_names_;
  std::atomic<uint64_t> trace_dropped_{0};
};

// Calls a native kernel on arrays that the caller keeps alive; exceptions become a failure with their text.
int call_kernel(polymux_kernel_fn function, const polymux_kernel_buffer* buffers, uint32_t n_buffers,
                const void* arguments, uint32_t arguments_nbytes, uint32_t threads, char* message,
                uint32_t message_nbytes);

}  // namespace polymux
