// gaussian_step(a, b, k) -> a_out, b_out: step k of Gaussian elimination without pivoting (Rodinia's Fan1 and Fan2).
#include "operands.hpp"
#include "parallel.hpp"

using namespace polymux::kernels;

namespace {

// row - multiplier * pivot over n elements; out is row or overlaps neither.
template <class T>
[[gnu::always_inline]] inline void subtract_row(T multiplier, const T* row, const T* __restrict pivot, T* out,
                                                uint64_t n) {
#pragma GCC ivdep
  for (uint64_t j = 0; j < n; ++j) {
    out[j] = row[j] - multiplier * pivot[j];
  }
}

POLYMUX_VECTOR_CLONES void subtract(float multiplier, const float* row, const float* pivot, float* out, uint64_t n) {
  subtract_row(multiplier, row, pivot, out, n);
}
POLYMUX_VECTOR_CLONES void subtract(double multiplier, const double* row, const double* pivot, double* out,
                                    uint64_t n) {
  subtract_row(multiplier, row, pivot, out, n);
}

template <class T>
void copy_rows(const T* from, T* to, uint64_t n) {
  if (from != to && n != 0) {
    std::memcpy(to, from, n * sizeof(T));
  }
}

template <class T>
void eliminate(uint32_t threads, const Array& a, const Array& b, const Array& a_out, const Array& b_out, uint64_t k) {
  const uint64_t n = a.extent(0), width = b.count / n;  // right-hand sides
  const T *pa = a.as<T>(), *pb = b.as<T>();
  T *qa = a_out.as<T>(), *qb = b_out.as<T>();
  const T pivot = pa[k * n + k];
  if (k + 1 < n && pivot == 0) {
    refuse("a[" + std::to_string(k) + ", " + std::to_string(k) +
           "] is 0: this elimination does not pivot; reorder the rows first");
  }
  copy_rows(pa, qa, (k + 1) * n);
  copy_rows(pb, qb, (k + 1) * width);
  parallel_for(threads, n - k - 1, kGrainNbytes / (n * sizeof(T)) + 1, [&](uint64_t begin, uint64_t end) {
    for (uint64_t i = k + 1 + begin; i < k + 1 + end; ++i) {
      const T multiplier = pa[i * n + k] / pivot;
      copy_rows(pa + i * n, qa + i * n, k);
      qa[i * n + k] = 0;
      subtract(multiplier, pa + i * n + k + 1, pa + k * n + k + 1, qa + i * n + k + 1, n - k - 1);
      subtract(multiplier, pb + i * width, pb + k * width, qb + i * width, width);
    }
  });
}

}  // namespace

POLYMUX_KERNEL(gaussian_step) {
  return run(call, [](Operands& operands) {
    const Array a = operands.buffer("a"), b = operands.buffer("b"), a_out = operands.buffer("a_out"),
                b_out = operands.buffer("b_out");
    operands.finish();
    const auto k = operands.scalar<int64_t>("k");
    require_rank(a, 2, "(n, n)");
    const int64_t n = a.shape()[0];
    const int64_t square[] = {n, n};
    require_shape(a, square, "a square matrix");
    if ((b.rank != 1 && b.rank != 2) || b.shape()[0] != n) {
      refuse("b has shape " + shape_text(b.shape()) + ", expected (" + std::to_string(n) + ",) or (" +
             std::to_string(n) + ", right-hand sides)");
    }
    for (const Array* other : {&b, &a_out, &b_out}) {
      require_same_dtype(*other, a);
    }
    require_same_shape(a_out, a);
    require_same_shape(b_out, b);
    require_apart_or_same(a_out, a);
    require_apart_or_same(b_out, b);
    require_apart(a_out, b);
    require_apart(b_out, a);
    require_apart(a_out, b_out);
    if (k < 0 || k >= n) {
      refuse("k is " + std::to_string(k) + ", expected 0 to " + std::to_string(n - 1) + " for a of shape " +
             shape_text(a.shape()));
    }
    for_dtype<float, double>(
        a, [&]<class T>() { eliminate<T>(operands.threads(), a, b, a_out, b_out, static_cast<uint64_t>(k)); });
  });
}
