// bias_add(x, bias) -> y = x + bias, one bias per element of axis 1, rounded once.
#include "operands.hpp"
#include "parallel.hpp"

using namespace polymux::kernels;

namespace {

// Rows [begin, end) of the (rows, inner) view of x; row r belongs to channel r % channels.
template <class T>
[[gnu::always_inline]] inline void add_scalars(const T* x, const T* bias, T* y, uint64_t begin, uint64_t end,
                                               uint64_t channels, uint64_t inner) {
  for (uint64_t row = begin; row < end; ++row) {
    const T value = bias[row % channels];
#pragma GCC ivdep  // y is x or overlaps neither
    for (uint64_t i = row * inner; i < (row + 1) * inner; ++i) {
      y[i] = x[i] + value;
    }
  }
}

template <class T>
[[gnu::always_inline]] inline void add_vectors(const T* x, const T* bias, T* y, uint64_t begin, uint64_t end,
                                               uint64_t channels) {
  for (uint64_t row = begin; row < end; ++row) {
#pragma GCC ivdep
    for (uint64_t i = 0; i < channels; ++i) {
      y[row * channels + i] = x[row * channels + i] + bias[i];
    }
  }
}

#define POLYMUX_BIAS_ADD(T)                                                                          \
  POLYMUX_VECTOR_CLONES void add_each(const T* x, const T* bias, T* y, uint64_t begin, uint64_t end, \
                                      uint64_t channels, uint64_t inner) {                           \
    add_scalars(x, bias, y, begin, end, channels, inner);                                            \
  }                                                                                                  \
  POLYMUX_VECTOR_CLONES void add_all(const T* x, const T* bias, T* y, uint64_t begin, uint64_t end,  \
                                     uint64_t channels) {                                            \
    add_vectors(x, bias, y, begin, end, channels);                                                   \
  }
POLYMUX_BIAS_ADD(float)
POLYMUX_BIAS_ADD(double)

}  // namespace

POLYMUX_KERNEL(bias_add) {
  return run(call, [](Operands& operands) {
    const Array x = operands.buffer("x"), bias = operands.buffer("bias"), y = operands.buffer("y");
    operands.finish();
    require_same_dtype(bias, x);
    require_same_dtype(y, x);
    if (x.rank < 2) {
      refuse("x has shape " + shape_text(x.shape()) + ", expected 2 or more dimensions (N, C, ...)");
    }
    require_shape(bias, x.shape().subspan(1, 1), "one for each element of axis 1 of x");
    require_same_shape(y, x);
    require_apart_or_same(y, x);
    require_apart(y, bias);
    if (x.count == 0) {
      return;
    }
    const uint64_t images = x.extent(0), channels = x.extent(1), inner = x.count / (images * channels);
    for_dtype<float, double>(x, [&]<class T>() {
      const T *px = x.as<T>(), *pb = bias.as<T>();
      if (inner == 1) {
        parallel_for(operands.threads(), images, kGrainNbytes / (channels * sizeof(T)) + 1,
                     [&](uint64_t begin, uint64_t end) { add_all(px, pb, y.as<T>(), begin, end, channels); });
      } else {
        parallel_for(operands.threads(), images * channels, kGrainNbytes / (inner * sizeof(T)) + 1,
                     [&](uint64_t begin, uint64_t end) { add_each(px, pb, y.as<T>(), begin, end, channels, inner); });
      }
    });
  });
}
