// random_uniform(seed, stream, offset, low, high) -> y and random_normal(seed, stream, offset, mean, deviation) -> y.
#include <cmath>
#include <limits>

#include "operands.hpp"
#include "parallel.hpp"
#include "philox.hpp"

using namespace polymux::kernels;

namespace {

struct Sequence {
  uint64_t seed, stream, offset;
};

// y = a * number + b; one Philox block gives 16 / sizeof(T) elements.
template <class T>
struct Affine {
  T scale, shift;
};

template <class T>
constexpr uint64_t kPerBlock = 16 / sizeof(T);

[[gnu::always_inline]] inline void uniform_block(const philox_words& c, Affine<float> map, float* y) {
  y[0] = uniform_f4(c.x) * map.scale + map.shift;
  y[1] = uniform_f4(c.y) * map.scale + map.shift;
  y[2] = uniform_f4(c.z) * map.scale + map.shift;
  y[3] = uniform_f4(c.w) * map.scale + map.shift;
}
[[gnu::always_inline]] inline void uniform_block(const philox_words& c, Affine<double> map, double* y) {
  y[0] = uniform_f8(c.x, c.y) * map.scale + map.shift;
  y[1] = uniform_f8(c.z, c.w) * map.scale + map.shift;
}
[[gnu::always_inline]] inline void normal_block(const philox_words& c, Affine<float> map, float* y) {
  const pair_f4 low = normal_f4(c.x, c.y), high = normal_f4(c.z, c.w);
  y[0] = low.first * map.scale + map.shift;
  y[1] = low.second * map.scale + map.shift;
  y[2] = high.first * map.scale + map.shift;
  y[3] = high.second * map.scale + map.shift;
}
[[gnu::always_inline]] inline void normal_block(const philox_words& c, Affine<double> map, double* y) {
  const pair_f8 pair = normal_f8(c.x, c.y, c.z, c.w);
  y[0] = pair.first * map.scale + map.shift;
  y[1] = pair.second * map.scale + map.shift;
}

// Whole blocks [first, first + n) into y, in all vector versions.
#define POLYMUX_GENERATOR(name, T)                                                                        \
  POLYMUX_VECTOR_CLONES void name##_blocks(Sequence s, Affine<T> map, uint64_t first, uint64_t n, T* y) { \
    for (uint64_t i = 0; i < n; ++i) {                                                                    \
      name##_block(philox4x32_10(first + i, s.stream, s.seed), map, y + i * kPerBlock<T>);                \
    }                                                                                                     \
  }
POLYMUX_GENERATOR(uniform, float)
POLYMUX_GENERATOR(uniform, double)
POLYMUX_GENERATOR(normal, float)
POLYMUX_GENERATOR(normal, double)

struct Uniform {
  template <class T>
  static void blocks(Sequence s, Affine<T> map, uint64_t first, uint64_t n, T* y) {
    uniform_blocks(s, map, first, n, y);
  }
};
struct Normal {
  template <class T>
  static void blocks(Sequence s, Affine<T> map, uint64_t first, uint64_t n, T* y) {
    normal_blocks(s, map, first, n, y);
  }
};

// Elements [begin, end) of y, which are numbers [offset + begin, offset + end) of the sequence.
template <class Kind, class T>
void generate(Sequence s, Affine<T> map, T* y, uint64_t begin, uint64_t end) {
  constexpr uint64_t per = kPerBlock<T>;
  while (begin < end) {
    const uint64_t number = s.offset + begin, within = number % per;
    if (within == 0 && end - begin >= per) {
      const uint64_t n = (end - begin) / per;
      Kind::template blocks<T>(s, map, number / per, n, y + begin);
      begin += n * per;
    } else {  // a block that is wanted in part
      T whole[per];
      Kind::template blocks<T>(s, map, number / per, 1, whole);
      const uint64_t n = std::min(per - within, end - begin);
      std::copy_n(whole + within, n, y + begin);
      begin += n;
    }
  }
}

constexpr uint64_t kGrain = 1 << 17;  // numbers worth a thread of their own

template <class Kind>
void fill(Operands& operands, const Array& y, Sequence s, double scale, double shift) {
  if (y.count > std::numeric_limits<uint64_t>::max() - s.offset) {
    refuse("offset " + std::to_string(s.offset) + " plus the " + std::to_string(y.count) +
           " elements of y leaves the sequence of 2^64 numbers");
  }
  for_dtype<float, double>(y, [&]<class T>() {
    const Affine<T> map{static_cast<T>(scale), static_cast<T>(shift)};
    parallel_for(operands.threads(), y.count, kGrain,
                 [&](uint64_t begin, uint64_t end) { generate<Kind, T>(s, map, y.as<T>(), begin, end); });
  });
}

Sequence sequence_of(Operands& operands) {
  const auto seed = operands.scalar<uint64_t>("seed"), stream = operands.scalar<uint64_t>("stream");
  return {seed, stream, operands.scalar<uint64_t>("offset")};
}

}  // namespace

POLYMUX_KERNEL(random_uniform) {
  return run(call, [](Operands& operands) {
    const Array y = operands.buffer("y");
    operands.finish();
    const Sequence sequence = sequence_of(operands);
    const auto low = operands.scalar<double>("low"), high = operands.scalar<double>("high");
    if (!std::isfinite(high - low) || high < low) {
      refuse("low is " + std::to_string(low) + " and high " + std::to_string(high) +
             ", expected finite numbers with low <= high");
    }
    fill<Uniform>(operands, y, sequence, high - low, low);
  });
}

POLYMUX_KERNEL(random_normal) {
  return run(call, [](Operands& operands) {
    const Array y = operands.buffer("y");
    operands.finish();
    const Sequence sequence = sequence_of(operands);
    const auto mean = operands.scalar<double>("mean"), deviation = operands.scalar<double>("deviation");
    if (!std::isfinite(mean) || !std::isfinite(deviation) || deviation < 0) {
      refuse("mean is " + std::to_string(mean) + " and deviation " + std::to_string(deviation) +
             ", expected finite numbers with deviation >= 0");
    }
    fill<Normal>(operands, y, sequence, deviation, mean);
  });
}
