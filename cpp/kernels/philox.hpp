// The source of random numbers that OpenCL shares.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace polymux::kernels {

using uint = uint32_t;
using ulong = unsigned long;
static_assert(sizeof(ulong) == 8);

// OpenCL's bit casts, for the shared source.
[[gnu::always_inline]] inline int32_t as_int(float x) { return std::bit_cast<int32_t>(x); }
[[gnu::always_inline]] inline uint as_uint(float x) { return std::bit_cast<uint>(x); }
[[gnu::always_inline]] inline long as_long(double x) { return std::bit_cast<long>(x); }
[[gnu::always_inline]] inline ulong as_ulong(double x) { return std::bit_cast<ulong>(x); }
[[gnu::always_inline]] inline float as_float(uint x) { return std::bit_cast<float>(x); }
[[gnu::always_inline]] inline float as_float(int32_t x) { return std::bit_cast<float>(x); }
[[gnu::always_inline]] inline double as_double(ulong x) { return std::bit_cast<double>(x); }
[[gnu::always_inline]] inline double as_double(long x) { return std::bit_cast<double>(x); }

#define INLINE [[gnu::always_inline]] inline
#define SQRT_F4(x) std::sqrt(x)
#define SQRT_F8(x) std::sqrt(x)
#define HAVE_F8 1
#include "../../src/polymux/kernel/builtin/philox.cl"

}  // namespace polymux::kernels
