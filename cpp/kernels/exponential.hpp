// The source of exp that OpenCL shares, for scalars and for vectors of GCC.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

// Vectors are never passed to a function that is not inlined.
#pragma GCC diagnostic ignored "-Wpsabi"

namespace polymux::kernels {

// REAL{} + c would do for vectors alone.
template <class Real, class Scalar>
[[gnu::always_inline]] inline Real splat(Scalar constant) {
  if constexpr (std::is_floating_point_v<Real>) {
    return static_cast<Real>(constant);
  } else {
    return Real{} + constant;
  }
}

}  // namespace polymux::kernels

#define AS_REAL(bits) std::bit_cast<REAL>(bits)
#define AS_BITS(x) std::bit_cast<BITS>(x)
#define SPLAT(c) ::polymux::kernels::splat<REAL>(c)
#include "../../src/polymux/kernel/builtin/exponential.cl"
