// The Python module polymux.segment._core (placeholder until the segment is bound).
#include <nanobind/nanobind.h>

NB_MODULE(_core, module) { module.doc() = "Tasks, buffers and rings in shared memory."; }
