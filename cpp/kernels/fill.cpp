// fill(value) -> y.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "operands.hpp"
#include "parallel.hpp"

using namespace polymux::kernels;

namespace {

[[noreturn]] void refuse_value(const Array& y, double value, const char* why) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.17g", value);
  refuse("value " + std::string(text) + " does not fit the elements of y (" + dtype_name(y.dtype) + "): " + why);
}

template <class T>
uint64_t integer_bits(const Array& y, double value) {
  if (value != std::trunc(value)) {  // also NaN
    refuse_value(y, value, "it is no integer");
  }
  // The upper limit as 2^digits, which a double holds exactly.
  const double beyond = std::ldexp(1.0, std::numeric_limits<T>::digits);
  if (value < static_cast<double>(std::numeric_limits<T>::min()) || value >= beyond) {
    refuse_value(y, value, "it is out of their range");
  }
  return static_cast<uint64_t>(static_cast<T>(value));
}

// The bits of `value` rounded once (to nearest, ties to even) to a binary format of `digits` significant bits and
// exponents from `least` (of the smallest normal number, as std::frexp counts) to `most`.
uint64_t float_bits(const Array& y, double value, int digits, int least, int most, int width) {
  const uint64_t sign = std::signbit(value) ? uint64_t{1} << (width - 1) : 0;
  const uint64_t infinity = ((uint64_t{1} << (width - digits)) - 1) << (digits - 1);
  if (std::isnan(value)) {
    return sign | infinity | uint64_t{1} << (digits - 2);
  }
  if (std::isinf(value) || value == 0) {
    return sign | (value == 0 ? 0 : infinity);
  }
  int exponent = 0;
  std::frexp(value, &exponent);
  exponent = std::max(exponent, least);
  const double units = std::nearbyint(std::ldexp(std::fabs(value), digits - exponent));  // in units of the last place
  if (std::ldexp(units, exponent - digits) >= std::ldexp(1.0, most)) {
    refuse_value(y, value, "it is out of their range");
  }
  // Adding the integer lets a carry move into the exponent, and a missing leading bit make a subnormal.
  return sign | ((static_cast<uint64_t>(exponent - least) << (digits - 1)) + static_cast<uint64_t>(units));
}

uint64_t real_bits(const Array& y, double value) {
  switch (y.dtype) {
    case POLYMUX_BOOL:
      if (value != 0.0 && value != 1.0) {
        refuse_value(y, value, "it is neither 0 nor 1");
      }
      return value != 0.0;
    case POLYMUX_I8:
      return integer_bits<int8_t>(y, value);
    case POLYMUX_I16:
      return integer_bits<int16_t>(y, value);
    case POLYMUX_I32:
      return integer_bits<int32_t>(y, value);
    case POLYMUX_I64:
      return integer_bits<int64_t>(y, value);
    case POLYMUX_U8:
      return integer_bits<uint8_t>(y, value);
    case POLYMUX_U16:
      return integer_bits<uint16_t>(y, value);
    case POLYMUX_U32:
      return integer_bits<uint32_t>(y, value);
    case POLYMUX_U64:
      return integer_bits<uint64_t>(y, value);
    case POLYMUX_F16:
      return float_bits(y, value, 11, -13, 16, 16);
    case POLYMUX_BF16:
      return float_bits(y, value, 8, -125, 128, 16);
    case POLYMUX_F32:
    case POLYMUX_C64:
      return float_bits(y, value, 24, -125, 128, 32);
    default: {
      uint64_t bits;
      std::memcpy(&bits, &value, sizeof(bits));
      return bits;
    }
  }
}

}  // namespace

POLYMUX_KERNEL(fill) {
  return run(call, [](Operands& operands) {
    const Array y = operands.buffer("y");
    operands.finish();
    const uint64_t bits = real_bits(y, operands.scalar<double>("value"));
    for_itemsize(y, [&]<class T>() {
      T pattern;
      if constexpr (sizeof(T) == 16) {
        pattern = {bits, 0};
      } else {
        pattern = static_cast<T>(bits);
      }
      parallel_for(operands.threads(), y.count, kGrainNbytes / sizeof(T),
                   [&](uint64_t begin, uint64_t end) { std::fill(y.as<T>() + begin, y.as<T>() + end, pattern); });
    });
  });
}
