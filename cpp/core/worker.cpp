#include "worker.hpp"

#include <algorithm>
#include <cstring>

#include "futex.hpp"

namespace polymux {

namespace {

// A counter with one writer.
void add(std::atomic<uint64_t>& counter, uint64_t n) {
  counter.store(counter.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
}

int64_t to_ns(uint64_t cycles, double ns_per_cycle) {
  return static_cast<int64_t>(static_cast<double>(cycles) * ns_per_cycle);
}

// How long a task has waited. The client says when it was submitted: never before its queue was opened, nor in future.
uint64_t waited_cycles(uint32_t submitted, uint64_t start, uint64_t opened) {
  const auto ticks = static_cast<int32_t>(stamp_of(start) - submitted);
  if (ticks <= 0) return 0;
  return std::min(static_cast<uint64_t>(ticks) << kStampShift, start - opened);
}

void check_weight(uint32_t weight) {
  if (weight < 1 || weight > kMaxWeight) {
    throw SegmentError("weight " + std::to_string(weight) + " is outside 1 to " + std::to_string(kMaxWeight) +
                       " (100 is normal)");
  }
}

}  // namespace

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

void Worker::bind(std::shared_ptr<Segment> segment, uint32_t index, std::string queue, const Binding& binding) {
  check_weight(binding.weight);
  auto bound = std::make_unique<BoundQueue>();
  bound->ring = segment->queue(index);
  bound->segment = std::move(segment);
  bound->queue = queue;
  bound->priority = binding.priority;
  bound->native = binding.native;
  bound->weigh(binding.weight);
  {
    std::lock_guard lock(mutex_);
    wanted_.insert(queue);
  }
  post({Change::Kind::bind, std::move(queue), std::move(bound), binding.group});
}

bool Worker::unbind(const std::string& queue) {
  {
    std::lock_guard lock(mutex_);
    if (wanted_.erase(queue) == 0) return false;
  }
  post({Change::Kind::unbind, queue});
  return true;
}

void Worker::weigh(std::string queue, uint32_t weight) {
  check_weight(weight);
  post({Change::Kind::weigh, std::move(queue), nullptr, weight});
}

void Worker::hold(std::string queue) { post({Change::Kind::hold, std::move(queue)}); }
void Worker::resume(std::string queue) { post({Change::Kind::resume, std::move(queue)}); }
void Worker::fail_head(std::string queue, int32_t status, std::string message) {
  post({Change::Kind::fail_head, std::move(queue), nullptr, static_cast<uint32_t>(status), std::move(message)});
}

void Worker::apply_changes() {
  std::vector<Change> changes;
  {
    std::lock_guard lock(mutex_);
    changes.swap(changes_);
    changed_.store(false, std::memory_order_release);
  }
  for (Change& change : changes) {
    if (change.kind == Change::Kind::bind) {
      apply_bind(std::move(change.bound), change.number);
      continue;
    }
    if (change.kind >= Change::Kind::guard) {
      apply_gate(change);
      continue;
    }
    BoundQueue* b = bound_.find(change.queue);
    if (b == nullptr) continue;  // given up meanwhile
    switch (change.kind) {
      case Change::Kind::unbind:
        b->leaving = true;
        if (b->in_hand == 0) release(b);
        break;
      case Change::Kind::weigh:
        b->weigh(static_cast<uint32_t>(change.number));
        break;
      case Change::Kind::fail_head:
        b->fail_head.emplace(static_cast<int32_t>(change.number), std::move(change.message));
        b->held = false;
        break;
      default:
        b->held = change.kind == Change::Kind::hold;
    }
  }
}

void Worker::apply_bind(std::unique_ptr<BoundQueue> bound, uint64_t group) {
  if (bound_.find(bound->queue) != nullptr) return;
  std::lock_guard lock(stats_mutex_);
  if (trace_capacity_ != 0) {
    const auto at = std::find(trace_names_.begin(), trace_names_.end(), bound->queue);
    bound->trace_name = static_cast<uint32_t>(at - trace_names_.begin());
    if (at == trace_names_.end()) trace_names_.push_back(bound->queue);
  }
  bound_.add(std::move(bound), group);
}

QueueStats Worker::remove(BoundQueue* bound) {
  std::unique_ptr<BoundQueue> gone;  // dies after the lock: Python's lock is taken to drop its segment, and a reader of
                                     // the statistics waits for ours while it holds that one
  std::lock_guard lock(stats_mutex_);
  gone = bound_.remove(bound);
  return stats_of(*gone, clock_.ns_per_cycle());
}

void Worker::release(BoundQueue* bound) {
  std::string queue = bound->queue;
  const QueueStats stats = remove(bound);
  released_.emplace_back(std::move(queue), stats);
}

bool Worker::anything_to_do() {
  if (changed_.load(std::memory_order_acquire) || woken_.load(std::memory_order_acquire)) return true;
  if (!guarded_ || gate_ == Gate::in) return bound_.any_available();
  const std::optional<Hints> most = bound_.most_urgent();
  return most ? gate_ != Gate::asked || most->more_urgent_than(asked_) : gate_ == Gate::asked;
}

bool Worker::spin_for_task() {
  for (Spin spin(bound_.empty() ? 0 : spin_ns_); spin.again();) {
    if (anything_to_do()) return true;
  }
  return anything_to_do();
}

void Worker::sleep() {
  if (spin_for_task()) return;
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

void Worker::finish(BoundQueue& b, const TaskHeader& task, int32_t status, const char* text, size_t nbytes,
                    uint64_t start) {
  b.segment->complete(b.ring.get(), task.sequence, status, text, nbytes);
  const uint64_t end = cycles();
  if (start < last_end_) start = last_end_;  // it was in hand early: a stream runs one after the other
  last_end_ = end;
  const uint64_t busy = end - start;
  const uint64_t waiting = waited_cycles(task.submitted, start, b.ring->opened_cycles);
  bound_.charge(b, busy);
  add(b.tasks, 1);
  add(b.busy_cycles, busy);
  add(b.waiting_cycles, waiting);
  if (status != POLYMUX_OK) add(b.failed, 1);
  add(tasks_, 1);
  add(busy_cycles_, busy);
  add(waiting_cycles_, waiting);
  if (trace_capacity_ != 0) {
    std::lock_guard lock(stats_mutex_);
    const double scale = clock_.ns_per_cycle();
    const int64_t start_ns = std::max(clock_.at(start, scale), last_end_ns_);  // the scale gets better with time
    last_end_ns_ = std::max(clock_.at(end, scale), start_ns);
    const TraceRecord record{b.trace_name, task.kernel, task.sequence, clock_.at(start - waiting, scale),
                             start_ns,     last_end_ns_};
    if (trace_.size() < trace_capacity_) {
      trace_.push_back(record);
    } else {  // nobody has drained it for so long: the latest tasks are of more use than the earliest
      trace_[trace_oldest_] = record;
      trace_oldest_ = (trace_oldest_ + 1) % trace_capacity_;
      trace_dropped_.fetch_add(1, std::memory_order_relaxed);
    }
  }
}

Worker::Next Worker::next(bool block, uint32_t most) {
  for (uint32_t ran = 0;;) {
    if (changed_.load(std::memory_order_acquire)) apply_changes();
    if (!released_.empty()) {
      auto [queue, stats] = std::move(released_.back());
      released_.pop_back();
      return {Kind::released, nullptr, std::move(queue), {}, stats};
    }
    if (woken_.exchange(false, std::memory_order_acq_rel)) return {Kind::woken, nullptr, {}, {}, {}};
    if (guarded_ && gate_ != Gate::in) {
      if (auto told = at_gate(block)) return std::move(*told);
      sleep();
      continue;
    }
    // A caller that has tasks in hand is not kept from them by those that need no caller.
    BoundQueue* b = block || ran < most ? bound_.choose() : nullptr;
    if (b == nullptr) {
      if (!block) return {Kind::idle, nullptr, {}, {}, {}};
      if (guarded_ && !spin_for_task()) {
        gate_ = Gate::out;
        return {Kind::drained, nullptr, {}, {}, {}};
      }
      sleep();
      continue;
    }
    ServerQueue& ring = *b->ring;
    const uint64_t sequence = ring.taken + 1;
    if (b->seen != sequence) {
      b->broken = true;
      return {Kind::violation,
              nullptr,
              b->queue,
              "there is a task with sequence " + std::to_string(b->seen) + " in the ring, where only " +
                  std::to_string(sequence) + " can be",
              {}};
    }
    b->segment->read_task(ring.view.slot(sequence), sequence, &scratch_);
    ring.taken = sequence;
    ring.view.header->taken.store(sequence, std::memory_order_relaxed);
    ++ran;
    if (b->fail_head) {
      const auto [status, message] = std::move(*b->fail_head);
      b->fail_head.reset();
      finish(*b, scratch_.header, status, message.data(), message.size(), cycles());
      continue;
    }
    if (run_native(*b, scratch_)) continue;
    ++b->in_hand;
    auto record = std::make_shared<TaskRecord>();
    record->queue = b->queue;
    record->segment = b->segment;
    record->task = scratch_;
    record->start_cycles = cycles();
    return {Kind::task, std::move(record), b->queue, {}, {}};
  }
}

BoundQueue* Worker::holder(const TaskRecord& record) {
  if (record.done) throw SegmentError("the task is complete already");
  BoundQueue* b = bound_.find(record.queue);
  if (b == nullptr || b->segment != record.segment) throw SegmentError("queue " + record.queue + " is not bound here");
  return b;
}

void Worker::complete(TaskRecord* record, int32_t status, const std::string& message) {
  BoundQueue* b = holder(*record);
  const TaskHeader& h = record->task.header;
  if (h.sequence != b->ring->completed + 1) {
    throw SegmentError("task " + std::to_string(h.sequence) + " of queue " + b->queue + " cannot end before task " +
                       std::to_string(b->ring->completed + 1));
  }
  record->done = true;
  finish(*b, h, status, message.data(), message.size(), record->start_cycles);
  if (--b->in_hand == 0 && b->leaving) release(b);
}

void Worker::take_back(TaskRecord* record, BoundQueue* b) {
  const uint64_t sequence = record->task.header.sequence;
  if (sequence != b->ring->taken) {
    throw SegmentError("task " + std::to_string(b->ring->taken) + " of queue " + b->queue +
                       " is in hand; it goes back before task " + std::to_string(sequence));
  }
  record->done = true;
  b->ring->taken = sequence - 1;
  b->ring->view.header->taken.store(b->ring->taken, std::memory_order_relaxed);
  --b->in_hand;
}

void Worker::put_back(TaskRecord* record) {
  BoundQueue* b = holder(*record);
  take_back(record, b);
  b->held = true;
  if (b->in_hand == 0 && b->leaving) release(b);
}

QueueStats Worker::give_up(TaskRecord* record) {
  BoundQueue* b = holder(*record);
  if (b->in_hand != 1) {
    throw SegmentError(std::to_string(b->in_hand) + " tasks of queue " + b->queue + " are in hand; only the last " +
                       "one can be given up with it");
  }
  take_back(record, b);
  {
    std::lock_guard lock(mutex_);
    wanted_.erase(b->queue);
    std::erase_if(changes_, [b](const Change& c) { return c.kind == Change::Kind::unbind && c.queue == b->queue; });
  }
  return remove(b);
}

void Worker::fail_in_hand(int32_t status, const std::string& message) {
  std::vector<BoundQueue*> leaving;
  for (const auto& b : bound_) {
    if (b->in_hand != 0 && b->leaving) leaving.push_back(b.get());
    for (; b->in_hand != 0; --b->in_hand) {
      const uint64_t sequence = b->ring->completed + 1;
      b->segment->read_task(b->ring->view.slot(sequence), sequence, &scratch_);
      finish(*b, scratch_.header, status, message.data(), message.size(), cycles());
    }
  }
  for (BoundQueue* b : leaving) release(b);
}

QueueStats Worker::stats_of(const BoundQueue& b, double ns_per_cycle) const {
  return {b.tasks.load(), to_ns(b.busy_cycles.load(), ns_per_cycle), to_ns(b.waiting_cycles.load(), ns_per_cycle),
          b.failed.load()};
}

WorkerStats Worker::stats() {
  std::lock_guard lock(stats_mutex_);
  const double scale = clock_.ns_per_cycle();
  WorkerStats out{
      tasks_.load(), native_tasks_.load(), to_ns(busy_cycles_.load(), scale), to_ns(waiting_cycles_.load(), scale), {}};
  for (const auto& b : bound_) out.queues[b->queue] = stats_of(*b, scale);
  return out;
}

std::vector<TraceRecord> Worker::drain_trace() {
  std::lock_guard lock(stats_mutex_);
  std::vector<TraceRecord> out;
  out.reserve(trace_capacity_);
  out.swap(trace_);
  std::rotate(out.begin(), out.begin() + static_cast<ptrdiff_t>(trace_oldest_), out.end());
  trace_oldest_ = 0;
  return out;
}

std::vector<std::string> Worker::trace_names() {
  std::lock_guard lock(stats_mutex_);
  return trace_names_;
}

}  // namespace polymux
