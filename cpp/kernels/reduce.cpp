// reduce(x, op, axis) -> r: sum, minimum or maximum of all elements or along one axis.
#include <limits>
#include <type_traits>

#include "blocks.hpp"
#include "operands.hpp"

using namespace polymux::kernels;

namespace {

// What a value is accumulated in: floats in double precision, integers modulo 2^64.
template <class T>
using Sum = std::conditional_t<std::is_floating_point_v<T>, double, uint64_t>;

template <class T>
struct SumOf {
  using Acc = Sum<T>;
  static constexpr Acc identity = 0;
  static Acc join(Acc a, Acc b) { return a + b; }
};

// Minimum and maximum keep a NaN once they have seen it, as NumPy does.
template <class T>
struct MinOf {
  using Acc = T;
  static constexpr T identity =
      std::numeric_limits<T>::has_infinity ? std::numeric_limits<T>::infinity() : std::numeric_limits<T>::max();
  static T join(T a, T b) { return b < a || b != b ? b : a; }
};

template <class T>
struct MaxOf {
  using Acc = T;
  static constexpr T identity =
      std::numeric_limits<T>::has_infinity ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::lowest();
  static T join(T a, T b) { return b > a || b != b ? b : a; }
};

template <class Op, class T>
[[gnu::always_inline]] inline typename Op::Acc reduce_of(const T* x, uint64_t n) {
  using Acc = typename Op::Acc;
  if (n <= kLanes) {  // one element in each lane: the same sum without the lanes
    Acc total = Op::identity;
    for (uint64_t i = 0; i < n; ++i) {
      total = Op::join(total, static_cast<Acc>(x[i]));
    }
    return total;
  }
  Acc lanes[kLanes];
  std::fill_n(lanes, kLanes, Op::identity);
  uint64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (uint64_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = Op::join(lanes[lane], static_cast<Acc>(x[i + lane]));
    }
  }
  for (; i < n; ++i) {
    lanes[i % kLanes] = Op::join(lanes[i % kLanes], static_cast<Acc>(x[i]));
  }
  Acc total = Op::identity;
  for (const Acc lane : lanes) {
    total = Op::join(total, lane);
  }
  return total;
}

// Columns of an (n, inner) array with row stride `inner`, `width` of them (at most kLanes * 8), into r.
inline constexpr uint64_t kColumns = kLanes * 8;

template <class Op, class T>
[[gnu::always_inline]] inline void reduce_columns_of(const T* x, uint64_t n, uint64_t inner, uint64_t width, T* r) {
  using Acc = typename Op::Acc;
  Acc lanes[kColumns];
  std::fill_n(lanes, kColumns, Op::identity);
  for (uint64_t row = 0; row < n; ++row) {
    for (uint64_t column = 0; column < width; ++column) {
      lanes[column] = Op::join(lanes[column], static_cast<Acc>(x[row * inner + column]));
    }
  }
  for (uint64_t column = 0; column < width; ++column) {
    r[column] = static_cast<T>(lanes[column]);
  }
}

// One pair of functions, in all their vector versions, per operation and element type.
#define POLYMUX_REDUCTION(Op, T)                                                                                   \
  POLYMUX_VECTOR_CLONES typename Op<T>::Acc reduce_block(Op<T>, const T* x, uint64_t n) {                          \
    return reduce_of<Op<T>>(x, n);                                                                                 \
  }                                                                                                                \
  POLYMUX_VECTOR_CLONES void reduce_columns(Op<T>, const T* x, uint64_t n, uint64_t inner, uint64_t width, T* r) { \
    reduce_columns_of<Op<T>>(x, n, inner, width, r);                                                               \
  }
#define POLYMUX_REDUCTIONS(T) \
  POLYMUX_REDUCTION(SumOf, T) \
  POLYMUX_REDUCTION(MinOf, T) \
  POLYMUX_REDUCTION(MaxOf, T)
POLYMUX_REDUCTIONS(float)
POLYMUX_REDUCTIONS(double)
POLYMUX_REDUCTIONS(int32_t)
POLYMUX_REDUCTIONS(int64_t)

// x seen as (outer, n, inner), reduced over n.
struct Layout {
  uint64_t outer = 1, n = 1, inner = 1;
};

Layout layout_of(const Array& x, const Array& r, int32_t axis) {
  if (r.count == 1 && r.rank <= 1) {
    return {1, x.count, 1};
  }
  const int32_t at = axis < 0 ? axis + x.rank : axis;
  if (at < 0 || at >= x.rank) {
    refuse("axis is " + std::to_string(axis) + ", expected " + std::to_string(-x.rank) + " to " +
           std::to_string(x.rank - 1) + " for x of shape " + shape_text(x.shape()));
  }
  std::array<int64_t, POLYMUX_MAX_DIMENSIONS> expected{};
  Layout layout;
  for (int32_t i = 0, out = 0; i < x.rank; ++i) {
    (i < at ? layout.outer : i == at ? layout.n : layout.inner) *= x.extent(i);
    if (i != at) {
      expected[static_cast<size_t>(out++)] = x.shape()[static_cast<size_t>(i)];
    }
  }
  require_shape(r, std::span(expected).first(static_cast<size_t>(x.rank - 1)),
                "x without axis " + std::to_string(at) + ", or () for all elements");
  return layout;
}

template <class Op, class T>
void reduce(uint32_t threads, const Array& x, const Array& r, const Layout& layout) {
  const T* px = x.as<T>();
  T* pr = r.as<T>();
  const auto [outer, n, inner] = layout;
  if (outer == 1 && inner == 1) {
    *pr = static_cast<T>(reduce_blocks(
        threads, n, Op::identity,
        [&](uint64_t begin, uint64_t end) { return reduce_block(Op{}, px + begin, end - begin); }, Op::join));
  } else if (inner == 1) {
    parallel_for(threads, outer, kGrainNbytes / (n * sizeof(T) + 1) + 1, [&](uint64_t begin, uint64_t end) {
      for (uint64_t i = begin; i < end; ++i) {
        pr[i] = static_cast<T>(reduce_block(Op{}, px + i * n, n));
      }
    });
  } else {
    const uint64_t strips = (inner + kColumns - 1) / kColumns;
    parallel_for(threads, outer * strips, kGrainNbytes / (n * kColumns * sizeof(T) + 1) + 1,
                 [&](uint64_t begin, uint64_t end) {
                   for (uint64_t i = begin; i < end; ++i) {
                     const uint64_t row = i / strips, column = i % strips * kColumns;
                     reduce_columns(Op{}, px + row * n * inner + column, n, inner, std::min(kColumns, inner - column),
                                    pr + row * inner + column);
                   }
                 });
  }
}

}  // namespace

POLYMUX_KERNEL(reduce) {
  return run(call, [](Operands& operands) {
    const Array x = operands.buffer("x"), r = operands.buffer("r");
    operands.finish();
    const auto op = operands.scalar<int32_t>("op"), axis = operands.scalar<int32_t>("axis");
    if (op < 0 || op > 2) {
      refuse("op is " + std::to_string(op) + ", expected 0 (sum), 1 (minimum) or 2 (maximum)");
    }
    require_same_dtype(r, x);
    require_apart(r, x);
    const Layout layout = layout_of(x, r, axis);
    if (layout.n == 0 && op != 0 && r.count != 0) {
      refuse("x has shape " + shape_text(x.shape()) + ": no elements have no minimum or maximum");
    }
    for_dtype<float, double, int32_t, int64_t>(x, [&]<class T>() {
      if (r.count == 0) {
        return;
      }
      (op == 0   ? reduce<SumOf<T>, T>
       : op == 1 ? reduce<MinOf<T>, T>
                 : reduce<MaxOf<T>, T>)(operands.threads(), x, r, layout);
    });
  });
}
