// dot(x, y) -> r = sum of x * y, accumulated in double precision.
#include "blocks.hpp"
#include "operands.hpp"

using namespace polymux::kernels;

namespace {

template <class T>
[[gnu::always_inline]] inline double dot_of(const T* x, const T* y, uint64_t n) {
  double lanes[kLanes] = {};
  uint64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (uint64_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] += static_cast<double>(x[i + lane]) * static_cast<double>(y[i + lane]);
    }
  }
  for (; i < n; ++i) {
    lanes[i % kLanes] += static_cast<double>(x[i]) * static_cast<double>(y[i]);
  }
  double total = 0;
  for (const double lane : lanes) {
    total += lane;
  }
  return total;
}

POLYMUX_VECTOR_CLONES double dot_block(const float* x, const float* y, uint64_t n) { return dot_of(x, y, n); }
POLYMUX_VECTOR_CLONES double dot_block(const double* x, const double* y, uint64_t n) { return dot_of(x, y, n); }

}  // namespace

POLYMUX_KERNEL(dot) {
  return run(call, [](Operands& operands) {
    const Array x = operands.buffer("x"), y = operands.buffer("y"), r = operands.buffer("r");
    operands.finish();
    require_same_dtype(y, x);
    require_same_dtype(r, x);
    require_same_shape(y, x);
    require_apart(r, x);
    require_apart(r, y);
    if (r.count != 1) {
      refuse("r has shape " + shape_text(r.shape()) + ", expected () or (1,)");
    }
    for_dtype<float, double>(x, [&]<class T>() {
      const T *px = x.as<T>(), *py = y.as<T>();
      *r.as<T>() = static_cast<T>(reduce_blocks(
          operands.threads(), x.count, 0.0,
          [&](uint64_t begin, uint64_t end) { return dot_block(px + begin, py + begin, end - begin); },
          [](double a, double b) { return a + b; }));
    });
  });
}
