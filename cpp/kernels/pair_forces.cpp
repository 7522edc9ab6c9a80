// pair_forces(particles, first, alpha) -> forces: potential and force of each particle from its box and the 26 around
// it, as in Rodinia's lavaMD.
#include "exponential.hpp"
#include "operands.hpp"
#include "parallel.hpp"

using namespace polymux::kernels;

namespace {

// A register of particles; where the machine's are narrower the compiler takes several.
template <class T>
struct Vector;
template <>
struct Vector<float> {
  typedef float Real __attribute__((vector_size(64)));
  typedef int32_t Bits __attribute__((vector_size(64)));
};
template <>
struct Vector<double> {
  typedef double Real __attribute__((vector_size(64)));
  typedef int64_t Bits __attribute__((vector_size(64)));
};

constexpr uint64_t kFields = 4;  // x, y, z, charge of a particle; potential and force

struct Grid {
  uint64_t depth, height, width, particles;
};

template <class T>
struct Neighbours {
  const T* box[27];
  int count = 0;
};

// The boxes around one, in the order in which they lie in memory.
template <class T>
Neighbours<T> neighbours_of(const T* all, const Grid& grid, uint64_t z, uint64_t y, uint64_t x) {
  Neighbours<T> found;
  const auto low = [](uint64_t at) { return at == 0 ? 0 : at - 1; };
  for (uint64_t nz = low(z); nz <= std::min(z + 1, grid.depth - 1); ++nz) {
    for (uint64_t ny = low(y); ny <= std::min(y + 1, grid.height - 1); ++ny) {
      for (uint64_t nx = low(x); nx <= std::min(x + 1, grid.width - 1); ++nx) {
        found.box[found.count++] = all + ((nz * grid.height + ny) * grid.width + nx) * grid.particles * kFields;
      }
    }
  }
  return found;
}

// Forces on a box's particles; each adds its neighbours in order, whatever the width of the vectors.
template <class T>
[[gnu::always_inline]] inline void box_forces_of(const T* home, const Neighbours<T>& around, uint64_t n, T decay,
                                                 T* forces) {
  using REAL = typename Vector<T>::Real;
  using BITS = typename Vector<T>::Bits;
  constexpr uint64_t kWidth = sizeof(REAL) / sizeof(T);
  for (uint64_t begin = 0; begin < n; begin += kWidth) {
    REAL x, y, z, potential{}, force_x{}, force_y{}, force_z{};
    const uint64_t used = std::min(kWidth, n - begin);
    for (uint64_t lane = 0; lane < kWidth; ++lane) {
      const T* particle = home + (begin + std::min(lane, used - 1)) * kFields;
      x[lane] = particle[0];
      y[lane] = particle[1];
      z[lane] = particle[2];
    }
    for (int b = 0; b < around.count; ++b) {
      const T* other = around.box[b];
      for (uint64_t j = 0; j < n; ++j, other += kFields) {
        const REAL dx = x - other[0], dy = y - other[1], dz = z - other[2];
        const REAL exponent = (dx * dx + dy * dy + dz * dz) * decay;
        REAL strength;
        if constexpr (sizeof(T) == 4) {
          EXP_F4(exponent, strength)
        } else {
          EXP_F8(exponent, strength)
        }
        strength = strength * other[3];
        potential += strength;
        force_x += strength * dx;
        force_y += strength * dy;
        force_z += strength * dz;
      }
    }
    for (uint64_t lane = 0; lane < used; ++lane) {
      T* force = forces + (begin + lane) * kFields;
      force[0] = potential[lane];
      force[1] = 2 * force_x[lane];
      force[2] = 2 * force_y[lane];
      force[3] = 2 * force_z[lane];
    }
  }
}

POLYMUX_VECTOR_CLONES void box_forces(const float* home, const Neighbours<float>& around, uint64_t n, float decay,
                                      float* forces) {
  box_forces_of(home, around, n, decay, forces);
}
POLYMUX_VECTOR_CLONES void box_forces(const double* home, const Neighbours<double>& around, uint64_t n, double decay,
                                      double* forces) {
  box_forces_of(home, around, n, decay, forces);
}

constexpr uint64_t kGrainPairs = uint64_t{1} << 20;  // worth a thread of their own

template <class T>
void compute(uint32_t threads, const T* particles, T* forces, const Grid& grid, uint64_t first, uint64_t layers,
             T decay) {
  const uint64_t n = grid.particles, layer = grid.height * grid.width;
  const double pairs = 27.0 * static_cast<double>(n) * static_cast<double>(n);
  const auto grain = static_cast<uint64_t>(static_cast<double>(kGrainPairs) / pairs) + 1;
  parallel_for(threads, layers * layer, grain, [&](uint64_t begin, uint64_t end) {
    for (uint64_t box = begin; box < end; ++box) {
      const uint64_t at = first * layer + box, z = at / layer, y = at / grid.width % grid.height, x = at % grid.width;
      box_forces(particles + at * n * kFields, neighbours_of(particles, grid, z, y, x), n, decay,
                 forces + box * n * kFields);
    }
  });
}

}  // namespace

POLYMUX_KERNEL(pair_forces) {
  return run(call, [](Operands& operands) {
    const Array particles = operands.buffer("particles"), forces = operands.buffer("forces");
    operands.finish();
    const auto first = operands.scalar<int64_t>("first");
    const auto alpha = operands.scalar<double>("alpha");
    require_rank(particles, 5, "(depth, height, width, particles, 4)");
    require_rank(forces, 5, "(layers, height, width, particles, 4)");
    require_same_dtype(forces, particles);
    const auto shape = particles.shape();
    const int64_t wanted[] = {forces.shape()[0], shape[1], shape[2], shape[3], static_cast<int64_t>(kFields)};
    require_shape(forces, wanted, "layers of the boxes of particles, and potential and force");
    const int64_t four[] = {shape[0], shape[1], shape[2], shape[3], static_cast<int64_t>(kFields)};
    require_shape(particles, four, "x, y, z and charge of each particle");
    require_apart(forces, particles);
    if (first < 0 || first > shape[0] - wanted[0]) {
      refuse("first is " + std::to_string(first) + ", expected 0 to " + std::to_string(shape[0] - wanted[0]) +
             ": forces has " + std::to_string(wanted[0]) + " of the " + std::to_string(shape[0]) +
             " layers of particles");
    }
    if (!(alpha * alpha <= 1e30)) {
      refuse("alpha is " + std::to_string(alpha) + ", expected a number of at most 1e15");
    }
    if (forces.count == 0) {
      return;
    }
    const Grid grid{particles.extent(0), particles.extent(1), particles.extent(2), particles.extent(3)};
    for_dtype<float, double>(particles, [&]<class T>() {
      compute(operands.threads(), particles.as<T>(), forces.as<T>(), grid, static_cast<uint64_t>(first),
              forces.extent(0), static_cast<T>(-(alpha * alpha)));
    });
  });
}
