#include "worker.hpp"

#include <algorithm>
#include <cstring>
#include <exception>

#include "futex.hpp"

namespace polymux {

namespace {

// A counter with one writer.
void add(std::atomic<uint64_t>& counter, uint64_t n) {
  counter.store(counter.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
}

}  // namespace

void NativeTable::set(uint32_t id, Kernel kernel) {
  if (id >= kSize) throw SegmentError("kernel id " + std::to_string(id) + " is above " + std::to_string(kSize - 1));
  std::lock_guard lock(mutex_);
  kept_.push_back(std::make_unique<Kernel>(std::move(kernel)));
  table_[id].store(kept_.back().get(), std::memory_order_release);
}

void NativeTable::clear(uint32_t id) {
  if (id < kSize) table_[id].store(nullptr, std::memory_order_release);
}

int call_kernel(polymux_kernel_fn function, const polymux_kernel_buffer* buffers, uint32_t n_buffers,
                const void* arguments, uint32_t arguments_nbytes, uint32_t threads, char* message,
                uint32_t message_nbytes) {
  polymux_kernel_call call{POLYMUX_KERNEL_ABI, n_buffers, buffers, arguments,
                           arguments_nbytes,   threads,   message, message_nbytes};
  message[0] = '\0';
  try {
    return function(&call);
  } catch (const std::exception& e) {
    std::strncpy(message, e.what(), message_nbytes - 1);
    message[message_nbytes - 1] = '\0';
  } catch (...) {
    std::strncpy(message, "threw something that is no std::exception", message_nbytes);
    message[message_nbytes - 1] = '\0';
  }
  return -1;
}

Worker::Worker(uint32_t location, std::shared_ptr<NativeTable> natives, int64_t spin_ns, uint32_t trace_capacity,
               uint32_t threads)
    : location_(location),
      natives_(std::move(natives)),
      spin_ns_(spin_ns),
      threads_(threads),
      trace_capacity_(trace_capacity) {
  trace_.reserve(trace_capacity);
}

void Worker::post(Change change) {
  {
    std::lock_guard lock(mutex_);
    changes_.push_back(std::move(change));
    changed_.store(true, std::memory_order_release);
  }
  wake();
}

void Worker::wake() {
  woken_.store(true, std::memory_order_release);
  bell_.fetch_add(1, std::memory_order_seq_cst);
  if (asleep_.load(std::memory_order_seq_cst)) futex_wake_all(&bell_);
}

void Worker::bind(std::shared_ptr<Segment> segment, uint32_t index, std::string queue, int32_t priority, bool native) {
  auto bound = std::make_unique<Bound>();
  bound->ring = segment->queue(index);
  bound->segment = std::move(segment);
  bound->queue = queue;
  bound->priority = priority;
  bound->native = native;
  post(Change{Change::Kind::bind, std::move(queue), std::move(bound), 0, {}});
}

void Worker::unbind(std::string queue) { post(Change{Change::Kind::unbind, std::move(queue), nullptr, 0, {}}); }
void Worker::hold(std::string queue) { post(Change{Change::Kind::hold, std::move(queue), nullptr, 0, {}}); }
void Worker::resume(std::string queue) { post(Change{Change::Kind::resume, std::move(queue), nullptr, 0, {}}); }
void Worker::fail_head(std::string queue, int32_t status, std::string message) {
  post(Change{Change::Kind::fail_head, std::move(queue), nullptr, status, std::move(message)});
}

Worker::Bound* Worker::find(const std::string& queue) {
  for (auto& b : bound_) {
    if (b->queue == queue) return b.get();
  }
  return nullptr;
}

// True when something was released, so that the caller hears of it before another task runs.
bool Worker::apply_changes() {
  std::vector<Change> changes;
  {
    std::lock_guard lock(mutex_);
    changes.swap(changes_);
    changed_.store(false, std::memory_order_release);
  }
  for (Change& change : changes) {
    Bound* b = find(change.queue);
    switch (change.kind) {
      case Change::Kind::bind:
        if (b == nullptr) {
          if (trace_capacity_ != 0) {
            std::lock_guard lock(stats_mutex_);
            const auto at = std::find(trace_names_.begin(), trace_names_.end(), change.queue);
            change.bound->trace_name = static_cast<uint32_t>(at - trace_names_.begin());
            if (at == trace_names_.end()) trace_names_.push_back(change.queue);
          }
          change.bound->tail = change.bound->ring->taken;  // another stream may have had it
          std::lock_guard lock(stats_mutex_);
          bound_.push_back(std::move(change.bound));
        }
        break;
      case Change::Kind::unbind: {
        QueueStats left;
        std::unique_ptr<Bound> gone;  // dies after the lock: Python's lock is taken to drop its segment, and a reader
                                      // of the statistics waits for ours while it holds that one
        if (b != nullptr) {
          std::lock_guard lock(stats_mutex_);
          left = {b->tasks.load(),
                  static_cast<int64_t>(static_cast<double>(b->busy_cycles.load()) * clock_.ns_per_cycle())};
          const auto at = std::find_if(bound_.begin(), bound_.end(), [b](const auto& p) { return p.get() == b; });
          gone = std::move(*at);
          bound_.erase(at);
        }
        released_.emplace_back(change.queue, left);  // also when it was not bound: whoever asked waits for the answer
        break;
      }
      case Change::Kind::hold:
        if (b != nullptr) b->held = true;
        break;
      case Change::Kind::resume:
        if (b != nullptr) b->held = false;
        break;
      case Change::Kind::fail_head:
        if (b != nullptr) {
          b->fail_head.emplace(change.status, std::move(change.message));
          b->held = false;
        }
        break;
    }
  }
  return !released_.empty();
}

bool Worker::available(Bound& b) {
  if (b.held || b.broken) return false;
  if (b.tail != b.ring->taken) return true;
  b.tail = b.ring->view.header->tail.load(std::memory_order_acquire);
  return b.tail != b.ring->taken && !b.segment->dead() && b.ring->open.load(std::memory_order_relaxed);
}

bool Worker::anything_to_do() {
  if (changed_.load(std::memory_order_acquire) || woken_.load(std::memory_order_acquire)) return true;
  for (auto& b : bound_) {
    if (available(*b)) return true;
  }
  return false;
}

// The head with the highest priority (queue's plus task's), then the earliest deadline, then whose turn it is.
Worker::Bound* Worker::choose() {
  const size_t n = bound_.size();
  Bound* best = nullptr;
  int32_t best_priority = 0;
  int64_t best_deadline = 0;
  size_t best_at = 0;
  bool compared = false;
  for (size_t i = 0; i < n; ++i) {
    const size_t at = (turn_ + i) % n;
    Bound& b = *bound_[at];
    if (!available(b)) continue;
    if (best == nullptr) {
      best = &b;
      best_at = at;
      continue;
    }
    const auto hints = [](const Bound& x, int32_t* priority, int64_t* deadline) {
      const TaskHeader& h = x.ring->view.slots[x.ring->taken & x.ring->view.mask].header;
      const int64_t d = h.deadline_ns;
      *priority = x.priority + h.priority;
      *deadline = d > 0 ? d : INT64_MAX;
    };
    if (!compared) {
      hints(*best, &best_priority, &best_deadline);
      compared = true;
    }
    int32_t priority;
    int64_t deadline;
    hints(b, &priority, &deadline);
    if (priority > best_priority || (priority == best_priority && deadline < best_deadline)) {
      best = &b;
      best_at = at;
      best_priority = priority;
      best_deadline = deadline;
    }
  }
  if (best != nullptr) turn_ = (best_at + 1) % n;
  return best;
}

void Worker::sleep() {
  for (Spin spin(bound_.empty() ? 0 : spin_ns_); spin.again();) {
    if (anything_to_do()) return;
  }
  FutexValue words[kMaxFutexes];
  Segment* segments[kMaxFutexes];
  size_t n = 0;
  asleep_.store(true, std::memory_order_seq_cst);
  words[n] = {&bell_, bell_.load(std::memory_order_seq_cst)};
  segments[n++] = nullptr;
  bool all = true;
  for (auto& b : bound_) {
    if (b->held || b->broken) continue;
    Segment* s = b->segment.get();
    if (std::find(segments + 1, segments + n, s) != segments + n) continue;
    if (n == kMaxFutexes) {
      all = false;
      break;
    }
    s->header()->sleepers.fetch_add(kSleepOnce, std::memory_order_seq_cst);
    words[n] = {&s->header()->doorbell, s->header()->doorbell.load(std::memory_order_seq_cst)};
    segments[n++] = s;
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!anything_to_do()) {
    // More clients than the operating system lets one thread wait for: look at the rest every millisecond.
    futex_wait_any({words, n}, all ? -1 : 1'000'000);
  }
  for (size_t i = 1; i < n; ++i) segments[i]->header()->sleepers.fetch_sub(1, std::memory_order_seq_cst);
  asleep_.store(false, std::memory_order_seq_cst);
}

void Worker::finish(Bound& b, uint64_t sequence, uint32_t kernel, int32_t status, const char* text, size_t nbytes,
                    uint64_t start) {
  b.segment->complete(b.ring.get(), sequence, status, text, nbytes);
  const uint64_t end = cycles();
  const uint64_t busy = end - start;
  add(b.tasks, 1);
  add(b.busy_cycles, busy);
  add(tasks_, 1);
  add(busy_cycles_, busy);
  if (trace_capacity_ != 0) {
    std::lock_guard lock(stats_mutex_);
    if (trace_.size() < trace_capacity_) {
      const double scale = clock_.ns_per_cycle();
      trace_.push_back({b.trace_name, kernel, sequence, clock_.at(start, scale), clock_.at(end, scale)});
    } else {
      trace_dropped_.fetch_add(1, std::memory_order_relaxed);
    }
  }
}

// False when the task needs the caller (or deserves an error text that the caller writes).
bool Worker::run_native(Bound& b, CheckedTask& task) {
  const TaskHeader& h = task.header;
  if (!b.native || task.status != POLYMUX_OK || h.device != 0) return false;
  for (uint32_t i = 0; i < h.n_buffers; ++i) {
    if (task.refs[i].location != 0) return false;
  }
  const uint64_t start = cycles();
  if (h.kernel == kBarrierKernel || h.kernel == kToHostKernel) {
    finish(b, h.sequence, h.kernel, POLYMUX_OK, "", 0, start);
    return true;
  }
  const NativeTable::Kernel* kernel = natives_ && location_ == 0 ? natives_->find(h.kernel) : nullptr;
  if (kernel == nullptr || h.arguments_nbytes != kernel->arguments_nbytes) return false;
  if (!kernel->variadic) {
    if (h.n_buffers != kernel->n_inputs + kernel->n_outputs) return false;
    for (uint32_t i = 0; i < h.n_buffers; ++i) {
      const uint32_t mask = kernel->dtype_masks[i];
      if (mask != 0 && (mask >> task.refs[i].dtype & 1) == 0) return false;
      const uint8_t needed = i < kernel->n_inputs ? POLYMUX_READ : POLYMUX_WRITE;
      if ((task.refs[i].access & needed) == 0) return false;
    }
  }
  polymux_kernel_buffer buffers[POLYMUX_MAX_BUFFERS];
  for (uint32_t i = 0; i < h.n_buffers; ++i) {
    const CheckedRef& r = task.refs[i];
    buffers[i] = {b.segment->base() + r.offset, r.nbytes, r.dtype, r.access, r.ndim, 0, {}};
    for (int32_t d = 0; d < r.ndim; ++d) buffers[i].shape[d] = r.shape[d];
  }
  char message[kErrorTextBytes];
  const int rc = call_kernel(kernel->function, buffers, h.n_buffers, task.arguments, h.arguments_nbytes, threads_,
                             message, sizeof(message));
  add(native_tasks_, 1);
  if (rc == 0) {
    finish(b, h.sequence, h.kernel, POLYMUX_OK, "", 0, start);
  } else {
    message[sizeof(message) - 1] = '\0';
    if (message[0] == '\0') std::snprintf(message, sizeof(message), "native kernel %u returned %d", h.kernel, rc);
    const auto status = rc == POLYMUX_BAD_ARGUMENT ? POLYMUX_BAD_ARGUMENT : POLYMUX_KERNEL_FAILED;
    finish(b, h.sequence, h.kernel, status, message, std::strlen(message), start);
  }
  return true;
}

Worker::Next Worker::next() {
  for (;;) {
    if (changed_.load(std::memory_order_acquire)) apply_changes();
    if (!released_.empty()) {
      auto [queue, stats] = std::move(released_.back());
      released_.pop_back();
      return {Kind::released, nullptr, std::move(queue), {}, stats};
    }
    if (woken_.exchange(false, std::memory_order_acq_rel) && !changed_.load(std::memory_order_acquire)) {
      return {Kind::woken, nullptr, {}, {}, {}};
    }
    Bound* b = choose();
    if (b == nullptr) {
      sleep();
      continue;
    }
    ServerQueue& ring = *b->ring;
    if (b->tail - ring.taken > ring.capacity) {
      b->broken = true;
      return {Kind::violation,
              nullptr,
              b->queue,
              "the ring's tail " + std::to_string(b->tail) + " is more than its capacity ahead of " +
                  std::to_string(ring.taken),
              {}};
    }
    const uint64_t sequence = ring.taken + 1;
    b->segment->read_task(ring.view.slots[ring.taken & ring.view.mask], sequence, &scratch_);
    ring.taken = sequence;
    ring.view.header->taken.store(sequence, std::memory_order_relaxed);
    if (b->fail_head) {
      const auto [status, message] = std::move(*b->fail_head);
      b->fail_head.reset();
      finish(*b, sequence, scratch_.header.kernel, status, message.data(), message.size(), cycles());
      continue;
    }
    if (run_native(*b, scratch_)) continue;
    auto record = std::make_shared<TaskRecord>();
    record->queue = b->queue;
    record->segment = b->segment;
    record->task = scratch_;
    record->start_cycles = cycles();
    return {Kind::task, std::move(record), b->queue, {}, {}};
  }
}

void Worker::complete(TaskRecord* record, int32_t status, const std::string& message) {
  if (record->done) throw SegmentError("the task is complete already");
  Bound* b = find(record->queue);
  if (b == nullptr || b->segment != record->segment)
    throw SegmentError("queue " + record->queue + " is not bound here");
  record->done = true;
  const TaskHeader& h = record->task.header;
  finish(*b, h.sequence, h.kernel, status, message.data(), message.size(), record->start_cycles);
}

void Worker::put_back(TaskRecord* record) {
  if (record->done) throw SegmentError("the task is complete already");
  Bound* b = find(record->queue);
  if (b == nullptr || b->segment != record->segment)
    throw SegmentError("queue " + record->queue + " is not bound here");
  record->done = true;
  b->ring->taken = record->task.header.sequence - 1;
  b->ring->view.header->taken.store(b->ring->taken, std::memory_order_relaxed);
  b->held = true;  // until whoever decides says resume, fail_head or unbind
}

WorkerStats Worker::stats() {
  std::lock_guard lock(stats_mutex_);
  const double scale = clock_.ns_per_cycle();
  const auto ns = [scale](uint64_t c) { return static_cast<int64_t>(static_cast<double>(c) * scale); };
  WorkerStats out{tasks_.load(), native_tasks_.load(), ns(busy_cycles_.load()), {}};
  for (const auto& b : bound_) out.queues[b->queue] = {b->tasks.load(), ns(b->busy_cycles.load())};
  return out;
}

std::vector<TraceRecord> Worker::drain_trace() {
  std::lock_guard lock(stats_mutex_);
  std::vector<TraceRecord> out;
  out.reserve(trace_capacity_);
  out.swap(trace_);
  return out;
}

std::vector<std::string> Worker::trace_names() {
  std::lock_guard lock(stats_mutex_);
  return trace_names_;
}

}  // namespace polymux
