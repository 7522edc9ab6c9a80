// Queue.submit(kernel, inputs, outputs, **scalars): from a Python call to a descriptor in the ring in well under a
// microsecond, so it is written against the C interface of Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "task.hpp"

namespace nb = nanobind;

namespace polymux {

namespace {

PyObject* raise_argument(const Queue& queue, const KernelEntry& kernel, const std::string& message) {
  nb::object error = task_error(POLYMUX_BAD_ARGUMENT, queue.id(), queue.tail() + 1, kernel.name, message);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  return nullptr;
}

KernelBook& book_of(Queue& queue) { return *static_cast<KernelBook*>(queue.client()->attachment.get()); }

const KernelEntry* look_up(Queue& queue, PyObject* name) {
  KernelBook& book = book_of(queue);
  for (const auto& [seen, entry] : book.recent) {
    if (seen.ptr() == name) return entry;
  }
  if (!PyUnicode_Check(name)) {
    PyErr_Format(PyExc_TypeError, "kernel must be a name (str), not %s", Py_TYPE(name)->tp_name);
    return nullptr;
  }
  const char* text = PyUnicode_AsUTF8(name);
  if (text == nullptr) return nullptr;
  auto found = book.kernels.find(text);
  if (found == book.kernels.end()) {
    book.resolver(nb::borrow(name));  // the first use: asks the server and defines the kernel here
    found = book.kernels.find(text);
    if (found == book.kernels.end()) {
      PyErr_SetString(PyExc_RuntimeError, "the resolver has not defined the kernel");
      return nullptr;
    }
  }
  if (book.recent.size() >= 8) book.recent.erase(book.recent.begin());
  book.recent.emplace_back(nb::borrow(name), found->second.get());
  return found->second.get();
}

template <class T>
bool put_integer(PyObject* value, unsigned char* at) {
  T number;
  if constexpr (std::is_signed_v<T>) {
    const long long wide = PyLong_AsLongLong(value);
    if (wide == -1 && PyErr_Occurred()) return false;
    if (wide < std::numeric_limits<T>::min() || wide > std::numeric_limits<T>::max()) return false;
    number = static_cast<T>(wide);
  } else {
    const unsigned long long wide = PyLong_AsUnsignedLongLong(value);
    if (wide == static_cast<unsigned long long>(-1) && PyErr_Occurred()) return false;
    if (wide > std::numeric_limits<T>::max()) return false;
    number = static_cast<T>(wide);
  }
  std::memcpy(at, &number, sizeof(number));
  return true;
}

// True when packed here; false leaves the value to KernelSpec.pack, which knows every rule and words the error.
bool put_scalar(int32_t dtype, PyObject* value, unsigned char* at) {
  if (PyFloat_CheckExact(value) || (PyLong_CheckExact(value) && (dtype == POLYMUX_F32 || dtype == POLYMUX_F64))) {
    const double number = PyFloat_AsDouble(value);
    if (number == -1.0 && PyErr_Occurred()) return false;
    if (dtype == POLYMUX_F64) {
      std::memcpy(at, &number, sizeof(number));
      return true;
    }
    if (dtype != POLYMUX_F32) return false;
    const float single = static_cast<float>(number);
    if (std::isinf(single) && !std::isinf(number)) return false;
    std::memcpy(at, &single, sizeof(single));
    return true;
  }
  if (!PyLong_CheckExact(value)) return false;
  switch (dtype) {
    case POLYMUX_I8:
      return put_integer<int8_t>(value, at);
    case POLYMUX_I16:
      return put_integer<int16_t>(value, at);
    case POLYMUX_I32:
      return put_integer<int32_t>(value, at);
    case POLYMUX_I64:
      return put_integer<int64_t>(value, at);
    case POLYMUX_U8:
      return put_integer<uint8_t>(value, at);
    case POLYMUX_U16:
      return put_integer<uint16_t>(value, at);
    case POLYMUX_U32:
      return put_integer<uint32_t>(value, at);
    case POLYMUX_U64:
      return put_integer<uint64_t>(value, at);
    default:
      return false;
  }
}

// Packs all scalars by way of the kernel's spec: NumPy numbers, bools, halves, and every error.
bool pack_by_spec(Queue& queue, const KernelEntry& kernel, PyObject* const* values, PyObject* names,
                  unsigned char* packed) {
  PyErr_Clear();
  nb::dict scalars;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); ++i) {
    nb::handle name(PyTuple_GET_ITEM(names, i));
    const char* text = PyUnicode_AsUTF8(name.ptr());
    if (std::strcmp(text, "priority") == 0 || std::strcmp(text, "deadline_ns") == 0 ||
        std::strcmp(text, "share") == 0 || std::strcmp(text, "device") == 0 || std::strcmp(text, "inputs") == 0 ||
        std::strcmp(text, "outputs") == 0) {
      continue;
    }
    scalars[name] = nb::borrow(values[i]);
  }
  const nb::object bytes = book_of(queue).resolver(kernel.name, scalars);
  if (static_cast<size_t>(PyBytes_GET_SIZE(bytes.ptr())) != kernel.defaults.size()) {
    PyErr_SetString(PyExc_RuntimeError, "the packed scalars have another size than the spec says");
    return false;
  }
  std::memcpy(packed, PyBytes_AS_STRING(bytes.ptr()), kernel.defaults.size());
  return true;
}

struct Given {
  Buffer* buffers[POLYMUX_MAX_BUFFERS];
  uint8_t accesses[POLYMUX_MAX_BUFFERS];
  uint32_t n = 0;
  uint32_t n_inputs = 0;
};

bool add_buffers(Queue& queue, const KernelEntry& kernel, PyObject* sequence, uint8_t access, Given* given) {
  static PyTypeObject* const buffer_type = reinterpret_cast<PyTypeObject*>(nb::type<PyBuffer>().ptr());
  PyObject* const* items;
  PyObject* single[1];
  Py_ssize_t n;
  if (PyTuple_CheckExact(sequence)) {
    items = &PyTuple_GET_ITEM(sequence, 0);
    n = PyTuple_GET_SIZE(sequence);
  } else if (PyList_CheckExact(sequence)) {
    items = PySequence_Fast_ITEMS(sequence);
    n = PyList_GET_SIZE(sequence);
  } else if (PyObject_TypeCheck(sequence, buffer_type)) {
    single[0] = sequence;
    items = single;
    n = 1;
  } else {
    raise_argument(queue, kernel,
                   "inputs and outputs are lists or tuples of buffers, not " + std::string(Py_TYPE(sequence)->tp_name));
    return false;
  }
  if (given->n + static_cast<size_t>(n) > POLYMUX_MAX_BUFFERS) {
    raise_argument(queue, kernel, "a task has at most 16 buffers");
    return false;
  }
  for (Py_ssize_t i = 0; i < n; ++i) {
    if (!PyObject_TypeCheck(items[i], buffer_type)) {
      raise_argument(queue, kernel,
                     "argument " + std::to_string(given->n) + " is a " + std::string(Py_TYPE(items[i])->tp_name) +
                         ", not a buffer; put arrays into one with queue.array(...)");
      return false;
    }
    const nb::handle item(items[i]);
    Buffer* b = nb::inst_ready(item) ? nb::inst_ptr<PyBuffer>(item)->buffer.get() : nullptr;
    if (b == nullptr || b->client().get() != queue.client().get() || b->closed()) {
      raise_argument(queue, kernel,
                     "argument " + std::to_string(given->n) +
                         (b == nullptr  ? " is a buffer that could not be allocated"
                          : b->closed() ? " is a buffer that is closed"
                                        : " is a buffer of another client; export it there and import it here"));
      return false;
    }
    given->buffers[given->n] = b;
    given->accesses[given->n++] = access;
  }
  return true;
}

bool check_buffers(Queue& queue, const KernelEntry& kernel, const Given& given) {
  if (kernel.variadic) return true;
  const uint32_t n_outputs = given.n - given.n_inputs;
  if (given.n_inputs != kernel.n_inputs || n_outputs != kernel.n_outputs) {
    raise_argument(queue, kernel,
                   "it takes " + std::to_string(kernel.n_inputs) + " inputs and " + std::to_string(kernel.n_outputs) +
                       " outputs, not " + std::to_string(given.n_inputs) + " and " + std::to_string(n_outputs));
    return false;
  }
  for (uint32_t i = 0; i < given.n; ++i) {
    const uint32_t mask = kernel.dtype_masks[i];
    if (mask != 0 && (mask >> given.buffers[i]->dtype() & 1) == 0) {
      nb::object name =
          nb::module_::import_("polymux.core.dtype").attr("DType")(given.buffers[i]->dtype()).attr("name_short");
      raise_argument(queue, kernel,
                     (i < given.n_inputs ? "input " : "output ") +
                         std::to_string(i < given.n_inputs ? i : i - given.n_inputs) + " has dtype " +
                         nb::cast<std::string>(name) + ", which it does not take");
      return false;
    }
  }
  return true;
}

// Scalars and hints out of the keywords.
bool read_keywords(Queue& queue, const KernelEntry& kernel, PyObject* const* values, PyObject* names, Hints* hints,
                   unsigned char* packed, PyObject** inputs, PyObject** outputs) {
  const Py_ssize_t n = names == nullptr ? 0 : PyTuple_GET_SIZE(names);
  size_t next = 0, found = 0;
  bool by_spec = false;
  for (Py_ssize_t i = 0; i < n; ++i) {
    PyObject* name = PyTuple_GET_ITEM(names, i);
    const size_t n_scalars = kernel.scalars.size();
    size_t at = next;
    for (size_t tries = 0; tries < n_scalars && kernel.scalars[at % n_scalars].name.ptr() != name; ++tries) ++at;
    if (n_scalars != 0 && kernel.scalars[at % n_scalars].name.ptr() == name) {
      const ScalarEntry& scalar = kernel.scalars[at % n_scalars];
      if (!put_scalar(scalar.dtype, values[i], packed + scalar.offset)) by_spec = true;
      next = at % n_scalars + 1;
      ++found;
      continue;
    }
    const char* text = PyUnicode_AsUTF8(name);
    if (std::strcmp(text, "priority") == 0 || std::strcmp(text, "share") == 0) {
      const bool is_priority = text[0] == 'p';
      const long value = PyLong_AsLong(values[i]);
      if (value == -1 && PyErr_Occurred()) return false;
      if (is_priority ? (value < -128 || value > 127) : (value < 0 || value > 100)) {
        raise_argument(queue, kernel,
                       std::string(text) + "=" + std::to_string(value) +
                           (is_priority ? " is outside -128 to 127" : " is outside 0 to 100 per cent"));
        return false;
      }
      (is_priority ? hints->priority : reinterpret_cast<int32_t&>(hints->share)) = static_cast<int32_t>(value);
    } else if (std::strcmp(text, "deadline_ns") == 0) {
      if (values[i] == Py_None) continue;
      hints->deadline_ns = PyLong_AsLongLong(values[i]);
      if (hints->deadline_ns == -1 && PyErr_Occurred()) return false;
    } else if (std::strcmp(text, "device") == 0) {
      if (values[i] == Py_None) continue;
      const char* device = PyUnicode_AsUTF8(values[i]);
      if (device == nullptr) return false;
      hints->device = queue.client()->device_hint(device);
    } else if (std::strcmp(text, "inputs") == 0) {
      *inputs = values[i];
    } else if (std::strcmp(text, "outputs") == 0) {
      *outputs = values[i];
    } else {
      by_spec = true;  // an equal name that is not the same object, or a wrong one
    }
  }
  if (!by_spec && found < kernel.scalars.size()) {
    size_t required = 0;
    for (const ScalarEntry& s : kernel.scalars) required += s.required ? 1 : 0;
    by_spec = required != 0;
  }
  if (!by_spec) return true;
  nb::object none_given = nb::steal(PyTuple_New(0));
  return pack_by_spec(queue, kernel, values, names == nullptr ? none_given.ptr() : names, packed);
}

PyObject* submit(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* names) {
  if (nargs < 1 || nargs > 3) {
    PyErr_SetString(PyExc_TypeError,
                    "submit(kernel, inputs=(), outputs=(), **scalars) takes 1 to 3 positional arguments");
    return nullptr;
  }
  if (!nb::inst_ready(nb::handle(self))) [[unlikely]]
    throw Failure(POLYMUX_CLOSED, "the queue could not be opened");
  const std::shared_ptr<Queue>& queue_pointer = nb::inst_ptr<PyQueue>(nb::handle(self))->queue;
  Queue& queue = *queue_pointer;
  const KernelEntry* kernel = look_up(queue, args[0]);
  if (kernel == nullptr) return nullptr;
  PyObject* inputs = nargs > 1 ? args[1] : nullptr;
  PyObject* outputs = nargs > 2 ? args[2] : nullptr;
  Hints hints;
  alignas(16) unsigned char packed[POLYMUX_MAX_ARGUMENTS];
  if (!kernel->defaults.empty()) std::memcpy(packed, kernel->defaults.data(), kernel->defaults.size());
  if ((names != nullptr || !kernel->scalars.empty()) &&
      !read_keywords(queue, *kernel, args + nargs, names, &hints, packed, &inputs, &outputs)) {
    return nullptr;
  }
  Given given;
  if (inputs != nullptr && !add_buffers(queue, *kernel, inputs, POLYMUX_READ, &given)) return nullptr;
  given.n_inputs = given.n;
  if (outputs != nullptr && !add_buffers(queue, *kernel, outputs, POLYMUX_WRITE, &given)) return nullptr;
  if (!check_buffers(queue, *kernel, given)) return nullptr;
  // A buffer that is input and output is updated in place: both references say so.
  for (uint32_t i = 0; i < given.n_inputs; ++i) {
    for (uint32_t j = given.n_inputs; j < given.n && j < POLYMUX_MAX_BUFFERS; ++j) {
      if (given.buffers[i] == given.buffers[j]) {
        given.accesses[i] = given.accesses[j] = POLYMUX_READ | POLYMUX_WRITE;
      }
    }
  }
  const uint64_t sequence = queue.submit(kernel->id, given.n, given.buffers, given.accesses, packed,
                                         static_cast<uint32_t>(kernel->defaults.size()), hints);
  static PyTypeObject* const task_type = reinterpret_cast<PyTypeObject*>(nb::type<Task>().ptr());
  nb::object task = nb::inst_alloc(nb::handle(reinterpret_cast<PyObject*>(task_type)));
  new (nb::inst_ptr<Task>(task))
      Task{queue_pointer, sequence, kernel, outputs == nullptr ? nb::object() : nb::borrow(outputs)};
  nb::inst_mark_ready(task);
  return task.release().ptr();
}

}  // namespace

PyObject* queue_submit(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* names) {
  try {
    return submit(self, args, nargs, names);
  } catch (const Failure& failure) {
    const char* kernel = nargs > 0 && PyUnicode_Check(args[0]) ? PyUnicode_AsUTF8(args[0]) : "";
    const nb::handle queue(self);
    set_failure(failure, nb::inst_ready(queue) ? nb::inst_ptr<PyQueue>(queue)->queue->id() : "-", kernel);
  } catch (nb::python_error& e) {
    e.restore();
  } catch (const std::exception& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what());
  }
  return nullptr;
}

}  // namespace polymux
