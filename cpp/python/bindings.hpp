// The parts of the Python module polymux.segment._core.
#pragma once

#include <nanobind/nanobind.h>

void bind_allocator(nanobind::module_& module);

namespace polymux {

void bind_server(nanobind::module_& module);
void bind_client(nanobind::module_& module);
void bind_buffer(nanobind::module_& module);
void bind_task(nanobind::module_& module);

}  // namespace polymux
