// stencil(temperature, power, constants) -> temperature_out: one step of Rodinia's hotspot.
#include "stencil.hpp"

#include "operands.hpp"
#include "parallel.hpp"

namespace polymux::kernels {
namespace {

template <class T>
[[gnu::always_inline]] inline T update(const StencilConstants<T>& k, T centre, T up, T down, T left, T right, T power) {
  const T twice = centre + centre;
  const T vertical = (up + down - twice) * k.per_ry;
  const T horizontal = (left + right - twice) * k.per_rx;
  const T sink = (k.ambient - centre) * k.per_rz;
  return centre + k.step_over_capacity * (power + vertical + horizontal + sink);
}

template <class T>
[[gnu::always_inline]] inline void update_line(const StencilConstants<T>& k, const T* __restrict row,
                                               const T* __restrict up, const T* __restrict down,
                                               const T* __restrict power, T* __restrict out, uint64_t count,
                                               bool left_edge, bool right_edge) {
  const uint64_t last = count - 1, begin = left_edge ? 1 : 0, end = right_edge ? last : count;
  if (left_edge) {
    out[0] = update(k, row[0], up[0], down[0], row[0], right_edge && last == 0 ? row[0] : row[1], power[0]);
  }
  for (uint64_t c = begin; c < end; ++c) {
    out[c] = update(k, row[c], up[c], down[c], row[c - 1], row[c + 1], power[c]);
  }
  if (right_edge && last >= begin) {
    out[last] = update(k, row[last], up[last], down[last], row[last - 1], row[last], power[last]);
  }
}

}  // namespace

POLYMUX_VECTOR_CLONES void stencil_line(const StencilConstants<float>& k, const float* row, const float* up,
                                        const float* down, const float* power, float* out, uint64_t count,
                                        bool left_edge, bool right_edge) {
  update_line(k, row, up, down, power, out, count, left_edge, right_edge);
}
POLYMUX_VECTOR_CLONES void stencil_line(const StencilConstants<double>& k, const double* row, const double* up,
                                        const double* down, const double* power, double* out, uint64_t count,
                                        bool left_edge, bool right_edge) {
  update_line(k, row, up, down, power, out, count, left_edge, right_edge);
}

}  // namespace polymux::kernels

using namespace polymux::kernels;

POLYMUX_KERNEL(stencil) {
  return run(call, [](Operands& operands) {
    const Array now = operands.buffer("temperature"), power = operands.buffer("power"),
                next = operands.buffer("temperature_out");
    operands.finish();
    require_rank(now, 2, "(rows, columns)");
    for (const Array* other : {&power, &next}) {
      require_same_dtype(*other, now);
      require_same_shape(*other, now);
    }
    require_apart(next, now);
    require_apart(next, power);
    for_dtype<float, double>(now, [&]<class T>() {
      const StencilConstants<T> constants = stencil_constants<T>(operands);
      if (now.count == 0) {
        return;
      }
      const uint64_t rows = now.extent(0), columns = now.extent(1);
      parallel_for(operands.threads(), rows, kGrainNbytes / (columns * sizeof(T)) + 1,
                   [&](uint64_t begin, uint64_t end) {
                     for (uint64_t r = begin; r < end; ++r) {
                       const T* row = now.as<T>() + r * columns;
                       stencil_line(constants, row, r == 0 ? row : row - columns, r == rows - 1 ? row : row + columns,
                                    power.as<T>() + r * columns, next.as<T>() + r * columns, columns, true, true);
                     }
                   });
    });
  });
}
