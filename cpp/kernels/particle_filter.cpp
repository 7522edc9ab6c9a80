// particle_predict, particle_cumulate and particle_resample: the steps of a bootstrap particle filter.
#include <cmath>
#include <vector>

#include "exponential.hpp"
#include "operands.hpp"
#include "parallel.hpp"
#include "philox.hpp"

using namespace polymux::kernels;

namespace {

constexpr uint64_t kGrain = 1 << 16;  // particles worth a thread of their own

// ---- particle_predict ----

struct Motion {
  uint64_t seed, stream, first;
  float position_noise, velocity_noise, gain, level;
};

struct Image {
  const float* pixels;
  int32_t height, width;
};

// Rows of x, y and velocities, each of n particles.
template <class T>
struct Rows {
  T* x;
  uint64_t n;
  T* row(uint64_t index) const { return x + index * n; }
};

// The pixel at a distance from the middle: the nearest one; 0 for what is no number.
[[gnu::always_inline]] inline int32_t pixel(float distance, int32_t extent) {
  const float at = distance + 0.5f * static_cast<float>(extent), last = static_cast<float>(extent - 1);
  const float above = at > 0.0f ? at : 0.0f;
  return static_cast<int32_t>(above < last ? above : last);
}

POLYMUX_VECTOR_CLONES void predict(const Motion& motion, const Image& image, Rows<const float> from, Rows<float> to,
                                   float* log_weights, uint64_t begin, uint64_t end) {
  const float *from_x = from.row(0), *from_y = from.row(1), *from_vx = from.row(2), *from_vy = from.row(3);
  float *to_x = to.row(0), *to_y = to.row(1), *to_vx = to.row(2), *to_vy = to.row(3);
#pragma GCC ivdep
  for (uint64_t i = begin; i < end; ++i) {
    const philox_words words = philox4x32_10(motion.first + i, motion.stream, motion.seed);
    const pair_f4 position = normal_f4(words.x, words.y), velocity = normal_f4(words.z, words.w);
    to_x[i] = from_x[i] + from_vx[i] + motion.position_noise * position.first;
    to_y[i] = from_y[i] + from_vy[i] + motion.position_noise * position.second;
    to_vx[i] = from_vx[i] + motion.velocity_noise * velocity.first;
    to_vy[i] = from_vy[i] + motion.velocity_noise * velocity.second;
  }
  for (uint64_t i = begin; i < end; ++i) {
    const int64_t row = pixel(to_y[i], image.height), column = pixel(to_x[i], image.width);
    log_weights[i] = motion.gain * (image.pixels[row * image.width + column] - motion.level);
  }
}

// ---- particle_cumulate ----

constexpr uint64_t kBlock = 1 << 12;

POLYMUX_VECTOR_CLONES void weigh(const float* log_weights, float peak, int32_t* weights, uint64_t n) {
  using REAL = float;
  using BITS = int32_t;
  for (uint64_t i = 0; i < n; ++i) {
    const float difference = log_weights[i] - peak;
    const float exponent = difference >= -87.0f ? (difference < 0.0f ? difference : 0.0f) : -100.0f;
    float result;
    EXP_F4(exponent, result)
    weights[i] = static_cast<int32_t>(result * 1073741824.0f);
  }
}

// Running sums of a range, from what comes before it; their last. Without `cumulative` the sum alone.
uint64_t add_up(const float* log_weights, float peak, uint64_t sum, uint64_t* cumulative, uint64_t n) {
  int32_t weights[kBlock];
  for (uint64_t begin = 0; begin < n; begin += kBlock) {
    const uint64_t count = std::min(kBlock, n - begin);
    weigh(log_weights + begin, peak, weights, count);
    for (uint64_t i = 0; i < count; ++i) {
      sum += static_cast<uint64_t>(weights[i]);
      if (cumulative != nullptr) {
        cumulative[begin + i] = sum;
      }
    }
  }
  return sum;
}

// Each thread adds its part up, and once more when it is known what comes before the part.
uint64_t cumulate(uint32_t threads, const float* log_weights, float peak, uint64_t* cumulative, uint64_t n) {
  const uint64_t parts = std::clamp<uint64_t>(std::min<uint64_t>(threads, n / kGrain), 1, 256);
  const auto cut = [&](uint64_t part) { return n / parts * part + std::min(part, n % parts); };
  std::vector<uint64_t> before(parts, 0);
  const auto part_of = [&](uint64_t part, uint64_t* target) {
    const uint64_t begin = cut(part);
    return add_up(log_weights + begin, peak, before[part], target == nullptr ? nullptr : target + begin,
                  cut(part + 1) - begin);
  };
  if (parts > 1) {
    std::vector<uint64_t> sums(parts);
    parallel_for(threads, parts, 1, [&](uint64_t begin, uint64_t end) {
      for (uint64_t part = begin; part < end; ++part) {
        sums[part] = part_of(part, nullptr);
      }
    });
    for (uint64_t part = 1; part < parts; ++part) {
      before[part] = before[part - 1] + sums[part - 1];
    }
  }
  uint64_t total = 0;
  parallel_for(threads, parts, 1, [&](uint64_t begin, uint64_t end) {
    for (uint64_t part = begin; part < end; ++part) {
      const uint64_t last = part_of(part, cumulative);
      if (part == parts - 1) {
        total = last;
      }
    }
  });
  return total;
}

// ---- particle_resample ----

struct Comb {
  uint64_t phase, first, count, before, total;
};

// The first element that is greater than a value, in [from, to]; to where there is none.
uint64_t above(const uint64_t* cumulative, uint64_t from, uint64_t to, uint64_t value) {
  return static_cast<uint64_t>(std::upper_bound(cumulative + from, cumulative + to, value) - cumulative);
}

// New particles [begin, end): where they come from, and their fields.
template <class T>
void resample(const Comb& comb, const uint64_t* cumulative, Rows<const T> from, Rows<T> to, uint64_t fields,
              uint64_t begin, uint64_t end) {
  const uint64_t step = comb.total / comb.count, rest = comb.total % comb.count, last = from.n - 1;
  const uint64_t number = comb.first + begin;
  uint64_t position =
      number * step + number * rest / comb.count + (step >> 32) * comb.phase + ((step & 0xFFFFFFFF) * comb.phase >> 32);
  uint64_t remainder = number * rest % comb.count;
  uint64_t source = above(cumulative, 0, last, position > comb.before ? position - comb.before : 0);
  uint64_t sources[kBlock];
  for (; begin < end; begin += kBlock) {
    const uint64_t count = std::min(kBlock, end - begin);
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t wanted = position > comb.before ? position - comb.before : 0;
      for (int tries = 0; tries < 8 && source < last && cumulative[source] <= wanted; ++tries) {
        ++source;
      }
      if (cumulative[source] <= wanted) {
        source = above(cumulative, source, last, wanted);
      }
      sources[i] = source;
      position += step;
      remainder += rest;
      if (remainder >= comb.count) {
        remainder -= comb.count;
        ++position;
      }
    }
    for (uint64_t f = 0; f < fields; ++f) {
      const T* old = from.row(f);
      T* made = to.row(f) + begin;
      for (uint64_t i = 0; i < count; ++i) {
        made[i] = old[sources[i]];
      }
    }
  }
}

void require_finite(const char* name, double value) {
  if (!std::isfinite(value)) {
    refuse(std::string(name) + " is " + std::to_string(value) + ", expected a finite number");
  }
}

void require_image(const Array& image) {
  bool fits = image.rank >= 2;
  for (int32_t axis = 0; axis < image.rank; ++axis) {
    const int64_t extent = image.shape()[static_cast<size_t>(axis)];
    if (axis < image.rank - 2) {
      fits = fits && extent == 1;
    } else {
      fits = fits && extent > 0 && extent <= 1 << 20;
    }
  }
  if (!fits) {
    refuse("image has shape " + shape_text(image.shape()) +
           ", expected one image (..., 1 to 2^20 rows, 1 to 2^20 columns)");
  }
}

}  // namespace

POLYMUX_KERNEL(particle_predict) {
  return run(call, [](Operands& operands) {
    const Array particles = operands.buffer("particles"), image = operands.buffer("image"),
                out = operands.buffer("particles_out"), log_weights = operands.buffer("log_weights");
    operands.finish();
    Motion motion{};
    motion.seed = operands.scalar<uint64_t>("seed");
    motion.stream = operands.scalar<uint64_t>("stream");
    motion.first = operands.scalar<uint64_t>("first");
    for (auto [name, target] : {std::pair{"position_noise", &motion.position_noise},
                                {"velocity_noise", &motion.velocity_noise},
                                {"gain", &motion.gain},
                                {"level", &motion.level}}) {
      const auto value = operands.scalar<double>(name);
      require_finite(name, value);
      *target = static_cast<float>(value);
    }
    for (const Array* array : {&particles, &image, &out, &log_weights}) {
      require_dtype(*array, {POLYMUX_F32});
    }
    require_rank(particles, 2, "(4, particles)");
    const int64_t n = particles.shape()[1], four[] = {4, n}, one_each[] = {n};
    require_shape(particles, four, "x, y and two velocities");
    require_image(image);
    require_same_shape(out, particles);
    require_shape(log_weights, one_each, "one for each particle");
    for (const Array* input : {&particles, &image}) {
      require_apart(out, *input);
      require_apart(log_weights, *input);
    }
    require_apart(log_weights, out);
    const auto count = static_cast<uint64_t>(n);
    const Image pixels{image.as<float>(), static_cast<int32_t>(image.extent(image.rank - 2)),
                       static_cast<int32_t>(image.extent(image.rank - 1))};
    parallel_for(operands.threads(), count, kGrain, [&](uint64_t begin, uint64_t end) {
      constexpr uint64_t kPiece = 1 << 10;  // what moved is still in the cache when it is weighed
      for (; begin < end; begin += kPiece) {
        predict(motion, pixels, {particles.as<float>(), count}, {out.as<float>(), count}, log_weights.as<float>(),
                begin, std::min(begin + kPiece, end));
      }
    });
  });
}

POLYMUX_KERNEL(particle_cumulate) {
  return run(call, [](Operands& operands) {
    const Array log_weights = operands.buffer("log_weights"), peak = operands.buffer("peak"),
                cumulative = operands.buffer("cumulative"), total = operands.buffer("total");
    operands.finish();
    require_dtype(log_weights, {POLYMUX_F32});
    require_dtype(peak, {POLYMUX_F32});
    require_dtype(cumulative, {POLYMUX_U64});
    require_dtype(total, {POLYMUX_U64});
    require_rank(log_weights, 1, "(particles,)");
    const int64_t one[] = {1};
    require_shape(cumulative, log_weights.shape(), "one for each particle");
    require_shape(peak, one, "one number");
    require_shape(total, one, "one number");
    for (const Array* input : {&log_weights, &peak}) {
      require_apart(cumulative, *input);
      require_apart(total, *input);
    }
    require_apart(cumulative, total);
    *total.as<uint64_t>() = cumulate(operands.threads(), log_weights.as<float>(), *peak.as<float>(),
                                     cumulative.as<uint64_t>(), log_weights.count);
  });
}

POLYMUX_KERNEL(particle_resample) {
  return run(call, [](Operands& operands) {
    const Array particles = operands.buffer("particles"), cumulative = operands.buffer("cumulative"),
                out = operands.buffer("particles_out");
    operands.finish();
    Comb comb{};
    comb.phase = operands.scalar<uint32_t>("phase");
    comb.first = operands.scalar<uint64_t>("first");
    comb.count = operands.scalar<uint64_t>("count");
    comb.before = operands.scalar<uint64_t>("before");
    comb.total = operands.scalar<uint64_t>("total");
    require_dtype(cumulative, {POLYMUX_U64});
    require_same_dtype(out, particles);
    require_rank(particles, 2, "(fields, particles)");
    require_rank(out, 2, "(fields, particles)");
    const int64_t n = particles.shape()[1], one_each[] = {n}, fields[] = {particles.shape()[0], out.shape()[1]};
    require_shape(cumulative, one_each, "one for each particle");
    require_shape(out, fields, "the fields of particles");
    require_apart(out, particles);
    require_apart(out, cumulative);
    const uint64_t m = out.extent(1);
    if (n == 0 && m > 0) {
      refuse("particles has shape " + shape_text(particles.shape()) + ": there is none to draw " + std::to_string(m) +
             " from");
    }
    comb.count = comb.count == 0 ? m : comb.count;
    if (comb.count >= uint64_t{1} << 32 || comb.first > comb.count || m > comb.count - comb.first) {
      refuse("first is " + std::to_string(comb.first) + " and count " + std::to_string(comb.count) +
             ", expected room for " + std::to_string(m) + " among less than 2^32 new particles");
    }
    if (comb.total >> 63 != 0) {
      refuse("total is " + std::to_string(comb.total) + ", expected less than 2^63");
    }
    if (out.count == 0) {
      return;
    }
    if (comb.total == 0) {
      comb.total = cumulative.as<uint64_t>()[n - 1];
    }
    if (comb.total == 0) {
      refuse("all weights are 0: there is nothing to draw from");
    }
    for_dtype<float, double>(particles, [&]<class T>() {
      parallel_for(operands.threads(), m, kGrain, [&](uint64_t begin, uint64_t end) {
        resample<T>(comb, cumulative.as<uint64_t>(), {particles.as<T>(), static_cast<uint64_t>(n)}, {out.as<T>(), m},
                    particles.extent(0), begin, end);
      });
    });
  });
}
