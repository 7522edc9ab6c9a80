// The Python module polymux.segment._core.
#include <nanobind/nanobind.h>

#include "bindings.hpp"

NB_MODULE(_core, module) {
  module.doc() = "Tasks, buffers and rings in shared memory.";
  nanobind::set_leak_warnings(false);  // an application may exit with a queue in a global variable
  bind_allocator(module);
  polymux::bind_server(module);
  polymux::bind_client(module);
}
