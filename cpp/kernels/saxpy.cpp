// saxpy(x, y, a) -> y_out = a * x + y, rounded after each operation.
#include "operands.hpp"
#include "parallel.hpp"

using namespace polymux::kernels;

namespace {

template <class T>
[[gnu::always_inline]] inline void axpy(T a, const T* x, const T* y, T* out, uint64_t n) {
#pragma GCC ivdep  // out is x, is y, or overlaps neither
  for (uint64_t i = 0; i < n; ++i) {
    out[i] = a * x[i] + y[i];
  }
}

POLYMUX_VECTOR_CLONES void axpy_all(float a, const float* x, const float* y, float* out, uint64_t n) {
  axpy(a, x, y, out, n);
}
POLYMUX_VECTOR_CLONES void axpy_all(double a, const double* x, const double* y, double* out, uint64_t n) {
  axpy(a, x, y, out, n);
}

}  // namespace

POLYMUX_KERNEL(saxpy) {
  return run(call, [](Operands& operands) {
    const Array x = operands.buffer("x"), y = operands.buffer("y"), out = operands.buffer("y_out");
    operands.finish();
    const double a = operands.scalar<double>("a");
    require_same_dtype(y, x);
    require_same_dtype(out, x);
    require_same_shape(y, x);
    require_same_shape(out, x);
    require_apart_or_same(out, x);
    require_apart_or_same(out, y);
    for_dtype<float, double>(x, [&]<class T>() {
      parallel_for(operands.threads(), x.count, kGrainNbytes / sizeof(T), [&](uint64_t begin, uint64_t end) {
        axpy_all(static_cast<T>(a), x.as<T>() + begin, y.as<T>() + begin, out.as<T>() + begin, end - begin);
      });
    });
  });
}
