// stencil(temperature, power, constants) -> temperature_out: one step of Rodinia's hotspot.
#include "operands.hpp"
#include "parallel.hpp"

using namespace polymux::kernels;

namespace {

// Reciprocals and quotients in double precision, rounded once: the same numbers on every device.
template <class T>
struct Constants {
  T step_over_capacity, per_rx, per_ry, per_rz, ambient;
};

template <class T>
[[gnu::always_inline]] inline T update(const Constants<T>& k, T centre, T up, T down, T left, T right, T power) {
  const T twice = centre + centre;
  const T vertical = (up + down - twice) * k.per_ry;
  const T horizontal = (left + right - twice) * k.per_rx;
  const T sink = (k.ambient - centre) * k.per_rz;
  return centre + k.step_over_capacity * (power + vertical + horizontal + sink);
}

template <class T>
[[gnu::always_inline]] inline void update_row(const Constants<T>& k, const T* __restrict row, const T* __restrict up,
                                              const T* __restrict down, const T* __restrict power, T* __restrict out,
                                              uint64_t columns) {
  const uint64_t last = columns - 1;
  out[0] = update(k, row[0], up[0], down[0], row[0], row[std::min<uint64_t>(1, last)], power[0]);
  for (uint64_t c = 1; c < last; ++c) {
    out[c] = update(k, row[c], up[c], down[c], row[c - 1], row[c + 1], power[c]);
  }
  if (last > 0) {
    out[last] = update(k, row[last], up[last], down[last], row[last - 1], row[last], power[last]);
  }
}

POLYMUX_VECTOR_CLONES void update_line(const Constants<float>& k, const float* row, const float* up, const float* down,
                                       const float* power, float* out, uint64_t columns) {
  update_row(k, row, up, down, power, out, columns);
}
POLYMUX_VECTOR_CLONES void update_line(const Constants<double>& k, const double* row, const double* up,
                                       const double* down, const double* power, double* out, uint64_t columns) {
  update_row(k, row, up, down, power, out, columns);
}

template <class T>
Constants<T> constants_of(Operands& operands) {
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

}  // namespace

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
      const Constants<T> constants = constants_of<T>(operands);
      if (now.count == 0) {
        return;
      }
      const uint64_t rows = now.extent(0), columns = now.extent(1);
      parallel_for(operands.threads(), rows, kGrainNbytes / (columns * sizeof(T)) + 1,
                   [&](uint64_t begin, uint64_t end) {
                     for (uint64_t r = begin; r < end; ++r) {
                       const T* row = now.as<T>() + r * columns;
                       update_line(constants, row, r == 0 ? row : row - columns, r == rows - 1 ? row : row + columns,
                                   power.as<T>() + r * columns, next.as<T>() + r * columns, columns);
                     }
                   });
    });
  });
}
