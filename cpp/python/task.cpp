// The Python class Task, waiting with an eye on signals, and how failures become exceptions.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cmath>

#include "bindings.hpp"
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

void bind_task(nb::module_& m) {
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
