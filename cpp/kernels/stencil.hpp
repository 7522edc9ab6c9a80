// What the steps of hotspot have in common: the constants, and the new temperatures of a line of cells.
#pragma once

#include <algorithm>
#include <cstdint>

#include "operands.hpp"
#include "parallel.hpp"

namespace polymux::kernels {

// Reciprocals and quotients in double precision, rounded once: the same numbers on every device.
template <class T>
struct StencilConstants {
  T step_over_capacity, per_rx, per_ry, per_rz, ambient;
};

// Takes the scalars step, capacity, rx, ry, rz and ambient.
template <class T>
StencilConstants<T> stencil_constants(Operands& operands) {
  const char* names[] = {"step", "capacity", "rx", "ry", "rz", "ambient"};
  double values[6];
  for (int i = 0; i < 6; ++i) {
    values[i] = operands.scalar<double>(names[i]);
    if (i >= 1 && i <= 4 && !(values[i] > 0)) {
      refuse(std::string(names[i]) + " is " + std::to_string(values[i]) + ", expected a positive number");
    }
  }
  return {static_cast<T>(values[0] / values[1]), static_cast<T>(1 / values[2]), static_cast<T>(1 / values[3]),
          static_cast<T>(1 / values[4]), static_cast<T>(values[5])};
}

// out[c] for `count` cells of `row`, between the rows `up` and `down`. Cells left and right of the line are read,
// unless it ends there: beyond an edge it is as warm as at the edge.
void stencil_line(const StencilConstants<float>& k, const float* row, const float* up, const float* down,
                  const float* power, float* out, uint64_t count, bool left_edge, bool right_edge);
void stencil_line(const StencilConstants<double>& k, const double* row, const double* up, const double* down,
                  const double* power, double* out, uint64_t count, bool left_edge, bool right_edge);

}  // namespace polymux::kernels
