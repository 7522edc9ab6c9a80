// Python classes of the client's side: Client, Queue, Buffer, Task. polymux.client subclasses the first three.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cmath>

#include "bindings.hpp"
#include "core/blocking.hpp"
#include "core/clock.hpp"
#include "task.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace polymux {

namespace {

constexpr int64_t kSignalCheckNs = 100'000'000;

nb::object errors_module() { return nb::module_::import_("polymux.core.errors"); }

const char* error_class(polymux_status status) {
  switch (status) {
    case POLYMUX_SERVER_GONE:
      return "ServerGone";
    case POLYMUX_QUEUE_FULL:
      return "QueueFull";
    case POLYMUX_SEGMENT_FULL:
      return "SegmentFull";
    case POLYMUX_CLOSED:
      return "Closed";
    case POLYMUX_PROTOCOL_MISMATCH:
      return "ProtocolMismatch";
    case POLYMUX_NO_SERVER:
      return "NoServer";
    case POLYMUX_PERMISSION_DENIED:
      return "PermissionDenied";
    default:
      return "InvalidRequest";
  }
}

void* release_interpreter() { return PyGILState_Check() ? static_cast<void*>(PyEval_SaveThread()) : nullptr; }
void take_interpreter(void* state) { PyEval_RestoreThread(static_cast<PyThreadState*>(state)); }

void define_kernel(PyClient& self, const std::string& name, uint32_t id, uint32_t n_inputs, uint32_t n_outputs,
                   bool variadic, std::vector<uint32_t> dtype_masks, const nb::list& scalars,
                   const nb::bytes& defaults) {
  auto entry = std::make_unique<KernelEntry>();
  entry->id = id;
  entry->name = name;
  entry->n_inputs = n_inputs;
  entry->n_outputs = n_outputs;
  entry->variadic = variadic;
  entry->dtype_masks = std::move(dtype_masks);
  if (entry->dtype_masks.size() != n_inputs + n_outputs) throw std::invalid_argument("one dtype mask for each buffer");
  if (defaults.size() > POLYMUX_MAX_ARGUMENTS) throw std::invalid_argument("more than 256 bytes of arguments");
  const auto* bytes = reinterpret_cast<const unsigned char*>(defaults.c_str());
  entry->defaults.assign(bytes, bytes + defaults.size());
  for (nb::handle item : scalars) {
    const nb::tuple t = nb::cast<nb::tuple>(item);
    PyObject* scalar = nb::object(t[0]).release().ptr();
    PyUnicode_InternInPlace(&scalar);
    ScalarEntry s{nb::steal(scalar), nb::cast<int32_t>(t[1]), nb::cast<uint32_t>(t[2]), nb::cast<bool>(t[3])};
    if (s.offset + dtype_nbytes(s.dtype) > entry->defaults.size()) throw std::invalid_argument("a scalar lies outside");
    entry->scalars.push_back(std::move(s));
  }
  KernelBook& book = self.book();
  book.recent.clear();
  // An entry is replaced in place, never moved: tasks point at it for their errors' texts.
  auto& place = book.kernels[name];
  if (place) {
    *place = std::move(*entry);
  } else {
    place = std::move(entry);
  }
}

nb::tuple request(PyClient& self, const std::string& verb, const std::map<std::string, std::string>& fields,
                  const std::vector<int>& fds) {
  const Message reply = self.client->request(verb, fields, fds);
  return nb::make_tuple(nb::cast(reply.fields), nb::cast(reply.fds));
}

nb::dict memory_dict(const PyClient& self) {
  const Allocator::Stats s = self.client->memory();
  nb::dict d;
  d["live_nbytes"] = s.live_nbytes;
  d["live_blocks"] = s.live_blocks;
  d["free_nbytes"] = s.free_nbytes;
  d["largest_free_nbytes"] = s.largest_free_nbytes;
  d["peak_nbytes"] = s.peak_nbytes;
  return d;
}

void attach_book(const PyClient& self, nb::object resolver, nb::object awaiter) {
  auto book = std::make_shared<KernelBook>();
  book->resolver = std::move(resolver);
  book->awaiter = std::move(awaiter);
  self.client->attachment = std::move(book);
}

nb::tuple shape_tuple(const std::vector<int64_t>& shape) {
  nb::object out = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(shape.size())));
  for (size_t i = 0; i < shape.size(); ++i) {
    PyTuple_SET_ITEM(out.ptr(), static_cast<Py_ssize_t>(i), PyLong_FromLongLong(shape[i]));
  }
  return nb::cast<nb::tuple>(out);
}

// The bytes of the buffer as a writable uint8 array, counted as a live view for as long as it exists.
nb::object raw_view(const PyBuffer& self) {
  Buffer& b = *self.buffer;
  b.check_open();
  auto* keep = new std::shared_ptr<Buffer>(self.buffer);
  b.add_view();
  nb::capsule owner(keep, [](void* p) noexcept {
    auto* held = static_cast<std::shared_ptr<Buffer>*>(p);
    (*held)->drop_view();
    delete held;
  });
  uint64_t nbytes = 0;
  const std::vector<int64_t> shape = b.shape();
  array_nbytes(b.dtype(), static_cast<int32_t>(shape.size()), shape.data(), &nbytes);
  return nb::cast(nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(b.data(), {static_cast<size_t>(nbytes)}, owner));
}

void bind_py_client(nb::module_& m) {
  nb::class_<PyClient>(m, "Client")
      .def(
          "__init__",
          [](PyClient* self, const std::string& path, int fd, const std::string& name, uint64_t segment_nbytes,
             nb::object resolver, nb::object awaiter) {
            std::shared_ptr<Client> made =
                fd >= 0 ? Client::adopt(fd, name, segment_nbytes) : Client::connect(path, name, segment_nbytes);
            new (self) PyClient{std::move(made)};
            attach_book(*self, std::move(resolver), std::move(awaiter));
          },
          "path"_a, "fd"_a, "name"_a, "segment_nbytes"_a, "resolver"_a, "awaiter"_a)
      .def("request", &request, "verb"_a, "fields"_a = std::map<std::string, std::string>(),
           "fds"_a = std::vector<int>(), "Send a request; (fields of the reply, its descriptors).")
      .def("define_kernel", &define_kernel, "name"_a, "kernel_id"_a, "n_inputs"_a, "n_outputs"_a, "variadic"_a,
           "dtype_masks"_a, "scalars"_a, "defaults"_a)
      .def("memory", &memory_dict, "Counters of the segment's allocator, in bytes.")
      .def("close", [](PyClient& self) { self.client->close(); })
      .def_prop_ro("closed", [](const PyClient& self) { return self.client->closed(); })
      .def_prop_ro("server_gone", [](const PyClient& self) { return self.client->server_gone(); })
      .def_prop_ro("session", [](const PyClient& self) { return self.client->session(); })
      .def_prop_ro("devices", [](const PyClient& self) { return self.client->devices(); })
      .def_prop_ro("segment_nbytes", [](const PyClient& self) { return self.client->segment_nbytes(); })
      .def("completion_value", [](const PyClient& self) { return self.client->completion_value(); })
      .def(
          "completion_wait",
          [](PyClient& self, uint32_t value, int64_t timeout_ns) {
            nb::gil_scoped_release release;
            return self.client->completion_wait(value, timeout_ns);
          },
          "value"_a, "timeout_ns"_a);
}

PyType_Slot queue_slots[] = {{0, nullptr}, {0, nullptr}};
PyMethodDef queue_methods[] = {
    {"submit", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(queue_submit)), METH_FASTCALL | METH_KEYWORDS,
     "submit(kernel, inputs=(), outputs=(), **scalars) -> Task\n\nIssue a task; see polymux.client.Queue."},
    {nullptr, nullptr, 0, nullptr}};

Task barrier(const PyQueue& self) {
  const uint64_t sequence = self.queue->submit(kBarrierKernel, 0, nullptr, nullptr, "", 0, {});
  return Task{self.queue, sequence, nullptr, nb::object()};
}

void synchronize(const PyQueue& self, nb::handle timeout) {
  Queue& queue = *self.queue;
  wait_until_done(queue, queue.tail(), timeout_ns_of(timeout));
  const auto [sequence, error] = queue.first_unobserved();
  if (error == nullptr) return;
  nb::object raised = task_error(error->status, queue.id(), sequence, "?", error->text);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(raised.ptr())), raised.ptr());
  throw nb::python_error();
}

void bind_py_queue(nb::module_& m) {
  queue_slots[0] = {Py_tp_methods, queue_methods};
  nb::class_<PyQueue>(m, "Queue", nb::type_slots(queue_slots))
      .def(
          "__init__",
          [](PyQueue* self, const PyClient& client, const std::string& name, int32_t priority,
             const std::string& device, uint32_t capacity, bool raise_when_full) {
            new (self) PyQueue{client.client->open_queue({name, device, priority, capacity, raise_when_full})};
          },
          "client"_a, "name"_a, "priority"_a, "device"_a, "capacity"_a, "raise_when_full"_a)
      .def("barrier", &barrier, "A task that is done when all earlier tasks of the queue are.")
      .def("synchronize", &synchronize, "timeout"_a = nb::none(),
           "Wait for all tasks of the queue; raises the first failure that nobody has looked at.")
      .def("close", [](PyQueue& self) { self.queue->close(); })
      .def_prop_ro("closed", [](const PyQueue& self) { return self.queue->closed(); })
      .def_prop_ro("id", [](const PyQueue& self) { return self.queue->id(); })
      .def_prop_ro("name", [](const PyQueue& self) { return self.queue->name(); })
      .def_prop_ro("capacity", [](const PyQueue& self) { return self.queue->capacity(); })
      .def_prop_ro("submitted", [](const PyQueue& self) { return self.queue->tail(); })
      .def_prop_ro("in_flight", [](const PyQueue& self) { return self.queue->in_flight(); });
}

// The buffer protocol: shape and strides live in `internal` until the view is released.
struct Exported {
  std::shared_ptr<Buffer> buffer;
  std::vector<Py_ssize_t> shape, strides;
};

int get_buffer(PyObject* self, Py_buffer* view, int) {
  static constexpr const char* formats[] = {"?", "b", "h", "i", "q", "B",  "H", "I",
                                            "Q", "e", "f", "d", "H", "Zf", "Zd"};
  const std::shared_ptr<Buffer> b = nb::inst_ptr<PyBuffer>(nb::handle(self))->buffer;
  try {
    b->check_open();
    b->bring_home(-1);
    auto exported = std::make_unique<Exported>();
    exported->buffer = b;
    for (const int64_t extent : b->shape()) exported->shape.push_back(static_cast<Py_ssize_t>(extent));
    exported->strides.resize(exported->shape.size());
    const Py_ssize_t itemsize = dtype_nbytes(b->dtype());
    Py_ssize_t nbytes = itemsize;
    for (size_t i = exported->shape.size(); i-- > 0;) {
      exported->strides[i] = nbytes;
      nbytes *= exported->shape[i];
    }
    b->add_view();
    *view = {};
    view->buf = b->data();
    view->obj = Py_NewRef(self);
    view->len = nbytes;
    view->itemsize = itemsize;
    view->format = const_cast<char*>(formats[b->dtype()]);
    view->ndim = static_cast<int>(exported->shape.size());
    view->shape = exported->shape.data();
    view->strides = exported->strides.data();
    view->internal = exported.release();
    return 0;
  } catch (const Failure& failure) {
    set_failure(failure, "-", "-");
  } catch (const std::exception& e) {
    PyErr_SetString(PyExc_BufferError, e.what());
  }
  view->obj = nullptr;
  return -1;
}

void release_buffer(PyObject*, Py_buffer* view) {
  auto* exported = static_cast<Exported*>(view->internal);
  exported->buffer->drop_view();
  delete exported;
}

PyType_Slot buffer_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)},
                              {Py_bf_releasebuffer, reinterpret_cast<void*>(release_buffer)},
                              {0, nullptr}};

void bind_py_buffer(nb::module_& m) {
  nb::class_<PyBuffer>(m, "Buffer", nb::type_slots(buffer_slots))
      .def(
          "__init__",
          [](PyBuffer* self, const PyClient& client, int32_t dtype, const std::vector<int64_t>& shape, bool shareable) {
            new (self) PyBuffer{client.client->allocate(dtype, shape, shareable)};
          },
          "client"_a, "dtype"_a, "shape"_a, "shareable"_a)
      .def(
          "__init__",
          [](PyBuffer* self, const PyClient& client, const std::string& token) {
            new (self) PyBuffer{client.client->import_buffer(token)};
          },
          "client"_a, "token"_a)
      .def("raw_view", &raw_view)
      .def(
          "bring_home",
          [](const PyBuffer& self, nb::handle timeout) {
            if (!self.buffer->bring_home(timeout_ns_of(timeout))) {
              throw Failure(POLYMUX_TIMEOUT, "tasks still use the buffer");
            }
          },
          "timeout"_a = nb::none())
      .def(
          "wait",
          [](const PyBuffer& self, nb::handle timeout) {
            if (!self.buffer->wait(timeout_ns_of(timeout)))
              throw Failure(POLYMUX_TIMEOUT, "tasks still use the buffer");
          },
          "timeout"_a = nb::none(), "Wait for the tasks that use the buffer.")
      .def("close", [](PyBuffer& self) { self.buffer->close(); })
      .def(
          "export", [](PyBuffer& self) { return self.buffer->export_buffer(); },
          "A token by which another application can import the buffer.")
      .def(
          "revoke", [](PyBuffer& self) { self.buffer->revoke(); }, "Nobody can import it any more.")
      .def_prop_ro("shape", [](const PyBuffer& self) { return shape_tuple(self.buffer->shape()); })
      .def_prop_ro("dtype_code", [](const PyBuffer& self) { return self.buffer->dtype(); })
      .def_prop_ro("capacity_nbytes", [](const PyBuffer& self) { return self.buffer->nbytes(); })
      .def_prop_ro("slot", [](const PyBuffer& self) { return self.buffer->slot(); })
      .def_prop_ro("away", [](const PyBuffer& self) { return !self.buffer->closed() && self.buffer->away(); })
      .def_prop_ro("idle", [](const PyBuffer& self) { return self.buffer->idle(); })
      .def_prop_ro("closed", [](const PyBuffer& self) { return self.buffer->closed(); });
}

nb::object error_of(const Task& task) {
  const TaskError* error = task.queue->error(task.sequence);
  if (error == nullptr) return nb::none();
  return task_error(error->status, task.queue->id(), task.sequence, task.kernel_name(), error->text);
}

void wait_task(const Task& task, nb::handle timeout) {
  wait_until_done(*task.queue, task.sequence, timeout_ns_of(timeout));
  const nb::object error = error_of(task);
  if (error.is_none()) return;
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw nb::python_error();
}

nb::tuple outputs_of(const Task& task) {
  if (!task.outputs) return nb::make_tuple();
  if (nb::isinstance<PyBuffer>(task.outputs)) return nb::make_tuple(task.outputs);
  return nb::tuple(task.outputs);
}

}  // namespace

void set_failure(const Failure& failure, const std::string& queue, const std::string& kernel) {
  try {
    if (failure.status == POLYMUX_TIMEOUT) {
      PyErr_SetString(PyExc_TimeoutError, failure.what());
    } else if (failure.status == POLYMUX_SYSTEM_ERROR) {
      PyErr_SetString(PyExc_OSError, failure.what());
    } else if (failure.status < 100) {
      nb::object error = task_error(failure.status, queue, 0, kernel, failure.what());
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
    } else {
      PyErr_SetString(errors_module().attr(error_class(failure.status)).ptr(), failure.what());
    }
  } catch (nb::python_error& e) {
    e.restore();
  }
}

int64_t timeout_ns_of(nb::handle timeout) {
  if (timeout.is_none()) return -1;
  const double seconds = nb::cast<double>(timeout);
  if (!(seconds >= 0)) {
    throw Failure(POLYMUX_INVALID_REQUEST,
                  "timeout=" + std::to_string(seconds) + ": give seconds >= 0, or None to wait for ever");
  }
  return seconds > 9e9 ? -1 : static_cast<int64_t>(std::ceil(seconds * 1e9));
}

void wait_until_done(Queue& queue, uint64_t sequence, int64_t timeout_ns) {
  const int64_t start = now_ns();
  for (;;) {
    const int64_t left = timeout_ns < 0 ? kSignalCheckNs : std::max<int64_t>(0, timeout_ns - (now_ns() - start));
    const polymux_status status = queue.wait_done(sequence, std::min(left, kSignalCheckNs));
    if (status == POLYMUX_OK) break;
    if (status == POLYMUX_SERVER_GONE) throw Failure(status, "the server is gone; connect again when it is back");
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (timeout_ns >= 0 && now_ns() - start >= timeout_ns) {
      throw Failure(POLYMUX_TIMEOUT, "task " + std::to_string(sequence) + " of queue " + queue.name() + " is not done");
    }
  }
  if (queue.client()->anything_away()) queue.client()->bring_views_home(timeout_ns);
}

nb::object task_error(int status, const std::string& queue, uint64_t sequence, const std::string& kernel,
                      const std::string& message) {
  return errors_module().attr("task_failed")(status, queue, sequence, kernel, message);
}

void bind_client(nb::module_& m) {
  blocking_hooks = {release_interpreter, take_interpreter};
  nb::register_exception_translator([](const std::exception_ptr& p, void*) {
    try {
      std::rethrow_exception(p);
    } catch (const Failure& failure) {
      set_failure(failure, "-", "-");
    }
  });
  m.attr("LAYOUT_VERSION") = kLayoutVersion;
  m.attr("PROTOCOL_VERSION") = kProtocolVersion;
  m.def("default_socket_path", &default_socket_path);
  bind_py_client(m);
  bind_py_queue(m);
  bind_py_buffer(m);
  nb::class_<Task>(m, "Task", "A task that was submitted.")
      .def("wait", &wait_task, "timeout"_a = nb::none(),
           "Wait until it is done; raises its error, TimeoutError after `timeout` seconds, or ServerGone.")
      .def(
          "result",
          [](const Task& task, nb::handle timeout) {
            wait_task(task, timeout);
            return outputs_of(task);
          },
          "timeout"_a = nb::none(), "Wait; the output buffers as a tuple.")
      .def(
          "error",
          [](const Task& task, nb::handle timeout) {
            wait_until_done(*task.queue, task.sequence, timeout_ns_of(timeout));
            return error_of(task);
          },
          "timeout"_a = nb::none(), "Wait; the exception that the task ended with, or None.")
      .def(
          "done", [](const Task& task) { return task.queue->done(task.sequence); }, "Whether it has ended.")
      .def(
          "want", [](const Task& task) { task.queue->want(task.sequence); },
          "Ask that the client's completion word changes when it is done.")
      .def_prop_ro("sequence", [](const Task& task) { return task.sequence; })
      .def_prop_ro("queue_id", [](const Task& task) { return task.queue->id(); })
      .def_prop_ro("kernel", &Task::kernel_name)
      .def_prop_ro("outputs", &outputs_of)
      .def("__await__",
           [](nb::handle self) {
             const Task& task = nb::cast<const Task&>(self);
             return static_cast<KernelBook*>(task.queue->client()->attachment.get())->awaiter(self);
           })
      .def("__repr__", [](const Task& task) {
        return "<Task " + std::to_string(task.sequence) + " of queue " + task.queue->id() + ": " + task.kernel_name() +
               (task.queue->done(task.sequence) ? ", done>" : ", pending>");
      });
}

}  // namespace polymux
