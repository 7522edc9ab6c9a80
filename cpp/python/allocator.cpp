// The allocator for Python: tests check it, and the server may use it for the memory of a device.
#include "core/allocator.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <utility>
#include <vector>

namespace nb = nanobind;
using polymux::Allocator;

namespace {

nb::dict stats_of(const Allocator& allocator) {
  const Allocator::Stats stats = allocator.stats();
  nb::dict result;
  result["live_nbytes"] = stats.live_nbytes;
  result["live_blocks"] = stats.live_blocks;
  result["free_nbytes"] = stats.free_nbytes;
  result["largest_free_nbytes"] = stats.largest_free_nbytes;
  result["peak_nbytes"] = stats.peak_nbytes;
  return result;
}

std::vector<std::pair<uint64_t, uint64_t>> free_runs(const Allocator& allocator) {
  std::vector<std::pair<uint64_t, uint64_t>> runs;
  allocator.for_each_free([&](uint64_t offset, uint64_t nbytes) { runs.emplace_back(offset, nbytes); });
  return runs;
}

}  // namespace

void bind_allocator(nb::module_& module) {
  nb::class_<Allocator>(module, "Allocator", "Best-fit allocator of offsets in [base, base + nbytes). Not thread-safe.")
      .def(nb::init<uint64_t, uint64_t>(), nb::arg("base"), nb::arg("nbytes"))
      .def("allocate", &Allocator::allocate, nb::arg("nbytes"), nb::arg("alignment") = polymux::kGranule,
           "Offset of a block of at least `nbytes`, or None when it does not fit.")
      .def("release", &Allocator::release, nb::arg("offset"), "False when `offset` is not the start of a live block.")
      .def("usable_nbytes", &Allocator::usable_nbytes, nb::arg("offset"),
           "Rounded size of the live block at `offset`; 0 when there is none.")
      .def("stats", &stats_of, "Counters by name; walks all blocks.")
      .def("free_runs", &free_runs, "Every maximal free run as (offset, nbytes), by address.")
      .def("check", &Allocator::check, "Whether all internal structures agree.");
}
