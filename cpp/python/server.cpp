// Python classes of the server's side: Segment, NativeTable, Worker, TaskRecord.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings.hpp"
#include "core/worker.hpp"
#include "released.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace polymux {

namespace {

nb::tuple shape_tuple(int32_t ndim, const int64_t* shape) {
  nb::object out = nb::steal(PyTuple_New(ndim));
  for (int32_t i = 0; i < ndim; ++i) PyTuple_SET_ITEM(out.ptr(), i, PyLong_FromLongLong(shape[i]));
  return nb::cast<nb::tuple>(out);
}

nb::object segment_view(const std::shared_ptr<Segment>& segment, uint64_t offset, uint64_t nbytes) {
  unsigned char* at = segment->data(offset, nbytes);
  auto* keep = new std::shared_ptr<Segment>(segment);
  nb::capsule owner(keep, [](void* p) noexcept { delete static_cast<std::shared_ptr<Segment>*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(at, {static_cast<size_t>(nbytes)}, owner));
}

nb::tuple buffer_tuple(const Segment& segment, uint32_t slot, uint16_t generation) {
  const CheckedRef r = segment.buffer(slot, generation);
  return nb::make_tuple(r.offset, r.nbytes, r.dtype, shape_tuple(r.ndim, r.shape));
}

nb::list pending_refs(const Segment& segment, uint32_t index, uint64_t limit) {
  const auto queue = segment.queue(index);
  const uint64_t first = queue->taken + 1;
  const uint64_t end = first + std::min<uint64_t>(limit, queue->capacity);
  nb::list out;
  auto task = std::make_unique<CheckedTask>();
  for (uint64_t sequence = first; sequence != end && queue->view.published(sequence) == sequence; ++sequence) {
    segment.read_task(queue->view.slot(sequence), sequence, task.get());
    for (uint32_t i = 0; i < task->header.n_buffers; ++i) {
      const CheckedRef& r = task->refs[i];
      out.append(nb::make_tuple(r.slot, r.generation, r.access));
    }
  }
  return out;
}

nb::list refs_of(const TaskRecord& record) {
  nb::list out;
  for (uint32_t i = 0; i < record.task.header.n_buffers; ++i) {
    const CheckedRef& r = record.task.refs[i];
    out.append(nb::make_tuple(r.slot, r.generation, r.access, r.dtype, shape_tuple(r.ndim, r.shape), r.offset, r.nbytes,
                              r.location));
  }
  return out;
}

nb::tuple next_tuple(Worker& worker, bool block, uint32_t most) {
  Worker::Next next;
  {
    const ReleasedLock released;
    next = worker.next(block, most);
  }
  switch (next.kind) {
    case Worker::Kind::task:
      return nb::make_tuple("task", next.task);
    case Worker::Kind::released:
      return nb::make_tuple("released", nb::make_tuple(next.queue, next.stats.tasks, next.stats.busy_ns,
                                                       next.stats.waiting_ns, next.stats.failed));
    case Worker::Kind::violation:
      return nb::make_tuple("violation", nb::make_tuple(next.queue, next.message));
    case Worker::Kind::idle:
      return nb::make_tuple("idle", nb::none());
    case Worker::Kind::wanted: {
      const int64_t at_ns = next.hints.deadline_ns;
      const nb::object deadline = at_ns == INT64_MAX ? nb::none() : nb::cast(at_ns);
      return nb::make_tuple("wanted", nb::make_tuple(next.hints.priority, deadline, next.weight));
    }
    case Worker::Kind::drained:
      return nb::make_tuple("drained", nb::none());
    case Worker::Kind::woken:
      break;
  }
  return nb::make_tuple("woken", nb::none());
}

nb::dict stats_dict(Worker& worker) {
  const WorkerStats s = worker.stats();
  nb::dict queues;
  for (const auto& [queue, q] : s.queues) {
    nb::dict of_queue;
    of_queue["tasks"] = q.tasks;
    of_queue["busy_ns"] = q.busy_ns;
    of_queue["waiting_ns"] = q.waiting_ns;
    of_queue["failed"] = q.failed;
    queues[nb::cast(queue)] = of_queue;
  }
  nb::dict out;
  out["tasks"] = s.tasks;
  out["native_tasks"] = s.native_tasks;
  out["busy_ns"] = s.busy_ns;
  out["waiting_ns"] = s.waiting_ns;
  out["queues"] = queues;
  return out;
}

nb::list trace_list(Worker& worker) {
  const std::vector<TraceRecord> records = worker.drain_trace();
  const std::vector<std::string> names = worker.trace_names();
  nb::list out;
  for (const TraceRecord& r : records) {
    out.append(nb::make_tuple(names[r.queue], r.kernel, r.sequence, r.submitted_ns, r.start_ns, r.end_ns));
  }
  return out;
}

using AnyArray = nb::ndarray<nb::ro>;  // inputs may be read-only

int32_t dtype_of(const nb::dlpack::dtype& d) {
  using Code = nb::dlpack::dtype_code;
  const auto is = [&](Code code, int bits) { return d.code == static_cast<uint8_t>(code) && d.bits == bits; };
  if (is(Code::Bool, 8)) return POLYMUX_BOOL;
  if (is(Code::Float, 16)) return POLYMUX_F16;
  if (is(Code::Float, 32)) return POLYMUX_F32;
  if (is(Code::Float, 64)) return POLYMUX_F64;
  if (is(Code::Bfloat, 16)) return POLYMUX_BF16;
  if (is(Code::Complex, 64)) return POLYMUX_C64;
  if (is(Code::Complex, 128)) return POLYMUX_C128;
  for (int i = 0; i < 4; ++i) {
    if (is(Code::Int, 8 << i)) return POLYMUX_I8 + i;
    if (is(Code::UInt, 8 << i)) return POLYMUX_U8 + i;
  }
  throw std::invalid_argument("an array has a dtype that no kernel takes");
}

// What a kernel needs to know of an array; it must be C-contiguous. dtype: the array's own if negative.
polymux_kernel_buffer kernel_buffer(const AnyArray& array, int32_t access, int32_t dtype) {
  if (array.ndim() > POLYMUX_MAX_DIMENSIONS) throw std::invalid_argument("an array has more than 8 dimensions");
  polymux_kernel_buffer out{};
  out.data = const_cast<void*>(static_cast<const void*>(array.data()));
  out.nbytes = array.nbytes();
  out.dtype = dtype < 0 ? dtype_of(array.dtype()) : dtype;
  if (dtype >= 0 && (dtype > POLYMUX_C128 || dtype_nbytes(dtype) != array.itemsize())) {
    throw std::invalid_argument("a dtype does not have the size of its array's elements");
  }
  out.access = access;
  out.ndim = static_cast<int32_t>(array.ndim());
  int64_t expected = 1;
  for (size_t i = array.ndim(); i-- > 0;) {
    if (array.size() != 0 && array.shape(i) > 1 && array.stride(i) != expected)
      throw std::invalid_argument("an array is not C-contiguous");
    expected *= static_cast<int64_t>(array.shape(i));
    out.shape[i] = static_cast<int64_t>(array.shape(i));
  }
  return out;
}

nb::tuple call_native(uint64_t address, const std::vector<AnyArray>& arrays, const std::vector<int32_t>& accesses,
                      const nb::bytes& arguments, uint32_t threads, const std::vector<int32_t>& dtypes) {
  if (!dtypes.empty() && dtypes.size() != arrays.size()) {
    throw std::invalid_argument("give no dtypes, or one for each array");
  }
  if (arrays.size() > POLYMUX_MAX_BUFFERS || accesses.size() != arrays.size()) {
    throw std::invalid_argument("at most 16 arrays, each with an access");
  }
  polymux_kernel_buffer buffers[POLYMUX_MAX_BUFFERS];
  for (size_t i = 0; i < arrays.size(); ++i) {
    buffers[i] = kernel_buffer(arrays[i], accesses[i], dtypes.empty() ? -1 : dtypes[i]);
  }
  alignas(16) unsigned char packed[POLYMUX_MAX_ARGUMENTS];
  if (arguments.size() > sizeof(packed)) throw std::invalid_argument("more than 256 bytes of arguments");
  std::memcpy(packed, arguments.c_str(), arguments.size());
  char message[kErrorTextBytes];
  int rc = 0;
  {
    const ReleasedLock released;
    rc = call_kernel(reinterpret_cast<polymux_kernel_fn>(address), buffers, static_cast<uint32_t>(arrays.size()),
                     packed, static_cast<uint32_t>(arguments.size()), threads, message, sizeof(message));
  }
  message[sizeof(message) - 1] = '\0';
  return nb::make_tuple(rc, rc == 0 ? "" : std::string(message));
}

void grant(Worker& worker, const std::string& queue,
           const std::vector<std::tuple<uint32_t, uint16_t, uint8_t, uint64_t>>& buffers,
           const std::vector<nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig>>& memories, uint32_t uses) {
  if (buffers.size() != memories.size()) throw std::invalid_argument("one memory for each buffer");
  std::vector<GrantedBuffer> granted;
  for (size_t i = 0; i < buffers.size(); ++i) {
    const auto& [slot, generation, access, nbytes] = buffers[i];
    if (memories[i].size() < nbytes) throw std::invalid_argument("a memory is smaller than its buffer");
    granted.push_back({slot, generation, access, nbytes, memories[i].data()});
  }
  worker.grant(queue, std::move(granted), uses);
}

void set_native(NativeTable& table, uint32_t id, uint64_t address, uint32_t n_inputs, uint32_t n_outputs, bool variadic,
                std::vector<uint32_t> dtype_masks, uint32_t arguments_nbytes, bool threads) {
  if (!variadic && dtype_masks.size() != n_inputs + n_outputs) {
    throw std::invalid_argument("one dtype mask for each input and output");
  }
  table.set(id, {reinterpret_cast<polymux_kernel_fn>(address), n_inputs, n_outputs, variadic, arguments_nbytes,
                 std::move(dtype_masks), threads});
}

}  // namespace

void bind_server(nb::module_& m) {
  nb::exception<SegmentError>(m, "SegmentError", PyExc_ValueError);

  nb::class_<Segment>(m, "Segment", "The server's side of one client's memory (a sealed memfd).")
      .def(nb::init<uint64_t>(), "nbytes"_a)
      .def_prop_ro("fd", &Segment::fd)
      .def_prop_ro("nbytes", &Segment::nbytes)
      .def_prop_ro("dead", &Segment::dead)
      .def_prop_ro_static("data_offset", [](nb::handle) { return kDataOffset; })
      .def_prop_ro_static("max_buffers", [](nb::handle) { return kMaxBuffers; })
      .def("open_queue", &Segment::open_queue, "offset"_a, "capacity"_a)
      .def("close_queue", &Segment::close_queue, "index"_a)
      .def(
          "pending", [](const Segment& s, uint32_t index) { return s.queue(index)->pending(); }, "index"_a,
          "Tasks submitted and not yet taken.")
      .def(
          "counters",
          [](const Segment& s, uint32_t index) {
            const auto q = s.queue(index);
            nb::dict d;
            d["submitted"] = q->taken + q->pending();
            d["taken"] = q->taken;
            d["completed"] = q->completed;
            d["capacity"] = q->capacity;
            return d;
          },
          "index"_a)
      .def("pending_refs", &pending_refs, "index"_a, "limit"_a,
           "[(slot, generation, access)] of the buffers of the tasks that are submitted and not taken, of at most "
           "`limit` "
           "tasks, checked.")
      .def(
          "view",
          [](const std::shared_ptr<Segment>& s, uint64_t offset, uint64_t nbytes) {
            return segment_view(s, offset, nbytes);
          },
          "offset"_a, "nbytes"_a, "Bytes of the data part as a writable uint8 array, without a copy.")
      .def("buffer", &buffer_tuple, "slot"_a, "generation"_a, "(offset, nbytes, dtype, shape), checked.")
      .def("location", &Segment::location, "slot"_a)
      .def("set_location", &Segment::set_location, "slot"_a, "generation"_a, "location"_a)
      .def("set_shape", &Segment::set_shape, "slot"_a, "generation"_a, "shape"_a)
      .def("forget_shape", &Segment::forget_shape, "slot"_a, "generation"_a)
      .def("set_gate", &Segment::set_gate, "index"_a, "word"_a, "device"_a,
           "Tell a job whether it may go on, and where.")
      .def("map_foreign", &Segment::map_foreign, "offset"_a, "nbytes"_a, "fd"_a)
      .def("unmap_foreign", &Segment::unmap_foreign, "offset"_a, "nbytes"_a)
      .def("close", &Segment::close, "Drop its tasks; unmapped when nobody uses it any more.");

  nb::class_<NativeTable>(m, "NativeTable", "Native kernels that workers run without asking.")
      .def(nb::init<>())
      .def("set", &set_native, "kernel_id"_a, "address"_a, "n_inputs"_a, "n_outputs"_a, "variadic"_a, "dtype_masks"_a,
           "arguments_nbytes"_a, "threads"_a,
           "threads: whether the kernel uses the number of threads that it is told; otherwise it is told 1.")
      .def("clear", &NativeTable::clear, "kernel_id"_a);

  nb::class_<TaskRecord>(m, "TaskRecord", "A task in the hands of an accelerator thread.")
      .def_ro("queue", &TaskRecord::queue)
      .def_ro("segment", &TaskRecord::segment)
      .def_prop_ro("sequence", [](const TaskRecord& r) { return r.task.header.sequence; })
      .def_prop_ro("kernel_id", [](const TaskRecord& r) { return r.task.header.kernel; })
      .def_prop_ro("priority", [](const TaskRecord& r) { return r.task.header.priority; })
      .def_prop_ro("deadline_ns", [](const TaskRecord& r) { return r.task.header.deadline_ns; })
      .def_prop_ro("share", [](const TaskRecord& r) { return r.task.header.share; })
      .def_prop_ro("device_hint", [](const TaskRecord& r) { return r.task.header.device; })
      .def_prop_ro("args",
                   [](const TaskRecord& r) {
                     return nb::bytes(reinterpret_cast<const char*>(r.task.arguments), r.task.header.arguments_nbytes);
                   })
      .def_prop_ro("refs", &refs_of, "[(slot, generation, access, dtype, shape, offset, nbytes, location)]")
      .def_prop_ro("status", [](const TaskRecord& r) { return static_cast<int>(r.task.status); })
      .def_prop_ro("fault", [](const TaskRecord& r) -> nb::object {
        return r.task.status == POLYMUX_OK ? nb::none() : nb::cast(r.task.fault);
      });

  nb::class_<Worker>(m, "Worker", "What an accelerator thread runs.")
      .def(
          "__init__",
          [](Worker* self, uint32_t location, std::shared_ptr<NativeTable> natives, int64_t spin_ns,
             uint32_t trace_capacity,
             uint32_t threads) { new (self) Worker(location, std::move(natives), spin_ns, trace_capacity, threads); },
          "location"_a, "natives"_a.none(), "spin_ns"_a = 20'000, "trace_capacity"_a = 0, "threads"_a = 1)
      .def(
          "bind",
          [](Worker& w, std::shared_ptr<Segment> segment, uint32_t index, std::string queue, int32_t priority,
             bool native, uint64_t group, uint32_t weight) {
            w.bind(std::move(segment), index, std::move(queue), {priority, native, group, weight});
          },
          "segment"_a, "index"_a, "queue"_a, "priority"_a = 0, "native"_a = true, "group"_a = 0,
          "weight"_a = kNormalWeight,
          "native: run native tasks without asking. group: its queues share the stream as one. weight: 1 to 10000.")
      .def("unbind", &Worker::unbind, "queue"_a,
           "\"released\" follows, unless the thread gives it up before; False: it is not bound here (any more).")
      .def("weigh", &Worker::weigh, "queue"_a, "weight"_a)
      .def("hold", &Worker::hold, "queue"_a)
      .def("resume", &Worker::resume, "queue"_a)
      .def("fail_head", &Worker::fail_head, "queue"_a, "status"_a, "message"_a)
      .def("wake", &Worker::wake)
      .def(
          "guard", &Worker::guard, "on"_a,
          "Whether jobs use the device as well: \"wanted\" (priority, deadline in ns or None, weight) comes before its "
          "tasks, \"drained\" after them. To begin with it is let in.")
      .def("let_in", &Worker::let_in, "Answer to \"wanted\"; void when it has no task any more.")
      .def("leave", &Worker::leave, "\"wanted\" or \"drained\" follows when no task is in hand.")
      .def("next", &next_tuple, "block"_a = true, "most"_a = Worker::kMostAtOnce,
           "block False: \"idle\" instead of sleeping, and after `most` tasks that needed no caller.")
      .def(
          "complete",
          [](Worker& w, TaskRecord& t, int32_t status, const std::string& message) { w.complete(&t, status, message); },
          "task"_a, "status"_a, "message"_a = "")
      .def(
          "put_back", [](Worker& w, TaskRecord& t) { w.put_back(&t); }, "task"_a,
          "Back to the head of its queue, which is held.")
      .def(
          "give_up",
          [](Worker& w, TaskRecord& t) {
            const QueueStats s = w.give_up(&t);
            return nb::make_tuple(s.tasks, s.busy_ns, s.waiting_ns, s.failed);
          },
          "task"_a,
          "Back to the head of its queue, which is let go of at once, without \"released\"; (tasks, busy_ns, "
          "waiting_ns, failed).")
      .def("fail_in_hand", &Worker::fail_in_hand, "status"_a, "message"_a,
           "End all tasks in hand, for a caller that has lost count of them.")
      .def("grant", &grant, "queue"_a, "buffers"_a, "memories"_a, "uses"_a,
           "Let native tasks of a queue on these buffers, (slot, generation, access, nbytes) each, run in these "
           "memories, which stay until `recall`.")
      .def("recall", &Worker::recall, "queue"_a)
      .def("stats", &stats_dict)
      .def("drain_trace", &trace_list, "[(queue, kernel_id, sequence, submitted_ns, start_ns, end_ns)]")
      .def_prop_ro("trace_dropped", &Worker::trace_dropped);

  m.def(
      "layout",
      [] {
        nb::dict d;
        d["table_offset"] = kTableOffset;
        d["data_offset"] = kDataOffset;
        d["buffer_entry_nbytes"] = sizeof(BufferEntry);
        d["doorbell"] = offsetof(SegmentHeader, doorbell);
        d["queue_tail"] = offsetof(QueueHeader, tail);
        d["queue_completed"] = offsetof(QueueHeader, completed);
        d["errors_in_queue"] = kErrorsInQueue;
        d["error_slot_nbytes"] = sizeof(ErrorSlot);
        d["completions_in_queue"] = kCompletionsInQueue;
        d["completion_nbytes"] = sizeof(Completion);
        d["task_slot_nbytes"] = sizeof(TaskSlot);
        d["task_sequence"] = offsetof(TaskHeader, sequence);
        return d;
      },
      "Offsets and sizes of the shared structures (cpp/core/layout.hpp), for programs that write them by hand.");
  m.def("queue_nbytes", &queue_nbytes, "capacity"_a, "Size of a queue region.");
  m.def("slots_in_queue", &slots_in_queue, "capacity"_a, "Where a queue region's descriptors begin.");
  m.def("call_native", &call_native, "address"_a, "arrays"_a, "accesses"_a, "args"_a, "threads"_a,
        "dtypes"_a = std::vector<int32_t>(),
        "Call a native kernel; (return code, message). dtypes: where NumPy has no name for an array's (bfloat16). Runs "
        "without the interpreter's lock.");
  m.def("now_ns", &now_ns, "CLOCK_MONOTONIC in nanoseconds.");
  m.def("cycles", &cycles, "The processor's time-stamp counter.");
}

}  // namespace polymux
