// The Python class Buffer.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>

#include "bindings.hpp"
#include "task.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace polymux {

namespace {

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

// The buffer protocol: shape and strides live in `internal` until the view is released.
struct Exported {
  std::shared_ptr<Buffer> buffer;
  std::vector<Py_ssize_t> shape, strides;
};

int get_buffer(PyObject* self, Py_buffer* view, int) {
  static constexpr const char* formats[] = {"?", "b", "h", "i", "q", "B",  "H", "I",
                                            "Q", "e", "f", "d", "H", "Zf", "Zd"};
  try {
    if (!nb::inst_ready(nb::handle(self))) throw Failure(POLYMUX_CLOSED, "the buffer could not be allocated");
    const std::shared_ptr<Buffer> b = nb::inst_ptr<PyBuffer>(nb::handle(self))->buffer;
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

}  // namespace

void bind_buffer(nb::module_& m) {
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

}  // namespace polymux
