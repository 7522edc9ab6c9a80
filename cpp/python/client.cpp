// The Python classes Client and Queue; polymux.client subclasses them and Buffer.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.hpp"
#include "core/blocking.hpp"
#include "released.hpp"
#include "task.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace polymux {

namespace {

void* release_interpreter() { return PyGILState_Check() ? static_cast<void*>(PyEval_SaveThread()) : nullptr; }
void take_interpreter(void* state) { take_lock_back(static_cast<PyThreadState*>(state)); }

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

nb::object gate_view(const PyClient& self, uint32_t index) {
  auto* word = reinterpret_cast<uint32_t*>(self.client->gate(index));
  auto* keep = new std::shared_ptr<Client>(self.client);
  nb::capsule owner(keep, [](void* p) noexcept { delete static_cast<std::shared_ptr<Client>*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, uint32_t, nb::ndim<1>>(word, {2}, owner));
}

void attach_book(const PyClient& self, nb::object resolver, nb::object awaiter) {
  auto book = std::make_shared<KernelBook>();
  book->resolver = std::move(resolver);
  book->awaiter = std::move(awaiter);
  self.client->attachment = std::move(book);
}

void bind_py_client(nb::module_& m) {
  nb::class_<PyClient>(m, "Client")
      .def(
          "__init__",
          [](PyClient* self, const std::string& path, int fd, const std::string& name, uint64_t segment_nbytes,
             uint32_t weight, nb::object resolver, nb::object awaiter) {
            const ClientOptions options{name, segment_nbytes, weight};
            std::shared_ptr<Client> made = fd >= 0 ? Client::adopt(fd, options) : Client::connect(path, options);
            new (self) PyClient{std::move(made)};
            attach_book(*self, std::move(resolver), std::move(awaiter));
          },
          "path"_a, "fd"_a, "name"_a, "segment_nbytes"_a, "weight"_a, "resolver"_a, "awaiter"_a)
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
      .def("gate", &gate_view, "index"_a, "The gate of a job as a uint32 array: its word, and the device's number.")
      .def(
          "gate_wait",
          [](const PyClient& self, uint32_t index, uint32_t word, int64_t timeout_ns) {
            const ReleasedLock released;
            return self.client->gate_wait(index, word, timeout_ns);
          },
          "index"_a, "word"_a, "timeout_ns"_a, "Sleep while a gate's word has this value; False when the time is over.")
      .def(
          "fileno", [](const PyClient& self) { return self.client->fileno(); }, "The connection, to wait for its end.")
      .def(
          "shut_gates", [](PyClient& self) { self.client->shut_gates(); },
          "Have all gates say that the server is gone.")
      .def("completion_value", [](const PyClient& self) { return self.client->completion_value(); })
      .def(
          "completion_wait",
          [](PyClient& self, uint32_t value, int64_t timeout_ns) {
            const ReleasedLock released;
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
             const std::string& device, uint32_t capacity, bool raise_when_full, uint64_t memory_nbytes) {
            new (self) PyQueue{client.client->open_queue({.name = name,
                                                          .device = device,
                                                          .priority = priority,
                                                          .memory_nbytes = memory_nbytes,
                                                          .capacity = capacity,
                                                          .raise_when_full = raise_when_full})};
          },
          "client"_a, "name"_a, "priority"_a, "device"_a, "capacity"_a, "raise_when_full"_a, "memory_nbytes"_a)
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

}  // namespace

void bind_client(nb::module_& m) {
  blocking_hooks = {release_interpreter, take_interpreter};
  nb::register_exception_translator([](const std::exception_ptr& p, void*) {
    try {
      std::rethrow_exception(p);
    } catch (const Failure& failure) {
      set_failure(failure, "-", "-");
    }
  });
  m.attr("GATE_OPEN") = kGateOpen;
  m.attr("GATE_BOUNDARY") = kGateBoundary;
  m.attr("GATE_STEP") = kGateStep;
  m.attr("GATE_OVER") = kGateOver;
  m.attr("GATE_BITS") = kGateBits;
  m.attr("GATE_SERVER_GONE") = kGateServerGone;
  m.attr("MAX_JOBS") = kMaxJobs;
  m.attr("LAYOUT_VERSION") = kLayoutVersion;
  m.attr("PROTOCOL_VERSION") = kProtocolVersion;
  m.def("default_socket_path", &default_socket_path);
  bind_py_client(m);
  bind_py_queue(m);
  bind_buffer(m);
  bind_task(m);
}

}  // namespace polymux
