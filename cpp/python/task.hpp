// What submit() needs to know of a kernel, and the Python handle of a task.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/queue.hpp"

namespace polymux {

struct ScalarEntry {
  nanobind::object name;  // interned
  int32_t dtype;
  uint32_t offset;
  bool required;
};

struct KernelEntry {
  uint32_t id;
  std::string name;
  uint32_t n_inputs;
  uint32_t n_outputs;
  bool variadic;
  std::vector<uint32_t> dtype_masks;  // inputs, then outputs; 0: any
  std::vector<ScalarEntry> scalars;
  std::vector<unsigned char> defaults;  // the packed arguments with every default in place
};

// The kernels that a client has used, by name; hangs on the client (Client::attachment).
struct KernelBook {
  nanobind::object resolver;  // resolver(name) defines a kernel; resolver(name, {scalar: value}) packs its scalars
  nanobind::object awaiter;   // awaiter(task) is the iterator of `await task`
  std::unordered_map<std::string, std::unique_ptr<KernelEntry>> kernels;
  std::vector<std::pair<nanobind::object, const KernelEntry*>> recent;  // by identity of the name's string
};

// The Python classes hold the C++ objects by shared pointer, so that Python may subclass them.
struct PyClient {
  std::shared_ptr<Client> client;
  KernelBook& book() const { return *static_cast<KernelBook*>(client->attachment.get()); }
};

struct PyQueue {
  std::shared_ptr<Queue> queue;
};

struct PyBuffer {
  std::shared_ptr<Buffer> buffer;
};

struct Task {
  std::shared_ptr<Queue> queue;
  uint64_t sequence;
  const KernelEntry* kernel;  // of the book of the queue's client; nullptr for a barrier
  nanobind::object outputs;   // what was given to submit()

  std::string kernel_name() const { return kernel == nullptr ? "barrier" : kernel->name; }
};

// Sets the Python error that stands for a failure.
void set_failure(const Failure& failure, const std::string& queue, const std::string& kernel);
// Seconds or None to nanoseconds or -1; throws InvalidRequest.
int64_t timeout_ns_of(nanobind::handle timeout);
// Waits in slices, so that signals are handled, and brings home what has a view. Throws Failure.
void wait_until_done(Queue& queue, uint64_t sequence, int64_t timeout_ns);
nanobind::object task_error(int status, const std::string& queue, uint64_t sequence, const std::string& kernel,
                            const std::string& message);

// Queue.submit as a plain vectorcall method, for the cost of a call.
PyObject* queue_submit(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* names);

}  // namespace polymux
