// relu(x) -> y = 0 where x < 0, else x; relu_gradient(x, dy) -> dx = dy where x > 0, else 0.
#include "operands.hpp"
#include "parallel.hpp"

using namespace polymux::kernels;

namespace {

#define POLYMUX_RELU(T)                                                                             \
  POLYMUX_VECTOR_CLONES void cut(const T* x, T* y, uint64_t begin, uint64_t end) {                  \
    _Pragma("GCC ivdep") for (uint64_t i = begin; i < end; ++i) { y[i] = x[i] < 0 ? T{} : x[i]; }   \
  }                                                                                                 \
  POLYMUX_VECTOR_CLONES void pass(const T* x, const T* dy, T* dx, uint64_t begin, uint64_t end) {   \
    _Pragma("GCC ivdep") for (uint64_t i = begin; i < end; ++i) { dx[i] = x[i] > 0 ? dy[i] : T{}; } \
  }
POLYMUX_RELU(float)
POLYMUX_RELU(double)

}  // namespace

POLYMUX_KERNEL(relu) {
  return run(call, [](Operands& operands) {
    const Array x = operands.buffer("x"), y = operands.buffer("y");
    operands.finish();
    require_same_dtype(y, x);
    require_same_shape(y, x);
    require_apart_or_same(y, x);
    for_dtype<float, double>(x, [&]<class T>() {
      parallel_for(operands.threads(), x.count, kGrainNbytes / sizeof(T),
                   [&](uint64_t begin, uint64_t end) { cut(x.as<T>(), y.as<T>(), begin, end); });
    });
  });
}

POLYMUX_KERNEL(relu_gradient) {
  return run(call, [](Operands& operands) {
    const Array x = operands.buffer("x"), dy = operands.buffer("dy"), dx = operands.buffer("dx");
    operands.finish();
    require_same_dtype(dy, x);
    require_same_dtype(dx, x);
    require_same_shape(dy, x);
    require_same_shape(dx, x);
    require_apart_or_same(dx, x);
    require_apart_or_same(dx, dy);
    for_dtype<float, double>(x, [&]<class T>() {
      parallel_for(operands.threads(), x.count, kGrainNbytes / sizeof(T),
                   [&](uint64_t begin, uint64_t end) { pass(x.as<T>(), dy.as<T>(), dx.as<T>(), begin, end); });
    });
  });
}
