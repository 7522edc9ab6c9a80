// Gaussian elimination by blocks of pivot rows, without pivoting, on rows of any part of the matrix:
// gaussian_pivots(rows, first, column) -> pivots: rows that eliminate each other;
// gaussian_update(rows, pivots, first, column) -> rows_out: rows that lose their multiples of the pivots.
// Each element loses its multiples in the order of the pivots, each rounded: the bits of one step after the other.
#include "operands.hpp"
#include "parallel.hpp"

using namespace polymux::kernels;

namespace {

constexpr uint64_t kMostPivots = 64;
constexpr uint64_t kTileNbytes = 1024;              // of a row: the pivots' tile stays in the second-level cache
constexpr uint64_t kGrainFlop = uint64_t{4} << 20;  // work worth a thread of its own
constexpr uint64_t kRowsAtOnce = 4;

// 64 bytes of numbers; the compiler splits what the processor's registers cannot hold.
template <class T>
struct Vector {
  typedef T type __attribute__((vector_size(64), aligned(sizeof(T)), may_alias));
  static constexpr uint64_t lanes = 64 / sizeof(T);
};

// The multipliers of one row, and the pivots' own columns of it: zeros.
template <class T>
[[gnu::always_inline]] inline void find_multipliers(T* row, const T* pivots, uint64_t n_pivots, uint64_t columns,
                                                    uint64_t column, T* multipliers) {
  T own[kMostPivots];
  std::copy_n(row + column, n_pivots, own);
  for (uint64_t j = 0; j < n_pivots; ++j) {
    const T* __restrict pivot = pivots + j * columns + column;
    const T m = own[j] / pivot[j];
    multipliers[j] = m;
    for (uint64_t c = j + 1; c < n_pivots; ++c) {
      own[c] = own[c] - m * pivot[c];
    }
  }
  std::fill_n(row + column, n_pivots, T{0});
}

// Columns [begin, end) of kRowsAtOnce rows; `multipliers` has n_pivots of each row.
template <class T, uint64_t kRows>
[[gnu::always_inline]] inline void subtract(T* rows, const T* pivots, uint64_t n_pivots, uint64_t columns,
                                            const T* multipliers, uint64_t begin, uint64_t end) {
  using V = typename Vector<T>::type;
  constexpr uint64_t lanes = Vector<T>::lanes;
  uint64_t c = begin;
  for (; c + 2 * lanes <= end; c += 2 * lanes) {
    V sum[kRows][2];
    for (uint64_t r = 0; r < kRows; ++r) {
      sum[r][0] = *reinterpret_cast<const V*>(rows + r * columns + c);
      sum[r][1] = *reinterpret_cast<const V*>(rows + r * columns + c + lanes);
    }
    for (uint64_t j = 0; j < n_pivots; ++j) {
      const V low = *reinterpret_cast<const V*>(pivots + j * columns + c);
      const V high = *reinterpret_cast<const V*>(pivots + j * columns + c + lanes);
      for (uint64_t r = 0; r < kRows; ++r) {
        const T m = multipliers[r * n_pivots + j];
        sum[r][0] = sum[r][0] - m * low;
        sum[r][1] = sum[r][1] - m * high;
      }
    }
    for (uint64_t r = 0; r < kRows; ++r) {
      *reinterpret_cast<V*>(rows + r * columns + c) = sum[r][0];
      *reinterpret_cast<V*>(rows + r * columns + c + lanes) = sum[r][1];
    }
  }
  for (uint64_t r = 0; r < kRows; ++r) {
    for (uint64_t rest = c; rest < end; ++rest) {
      T value = rows[r * columns + rest];
      for (uint64_t j = 0; j < n_pivots; ++j) {
        value = value - multipliers[r * n_pivots + j] * pivots[j * columns + rest];
      }
      rows[r * columns + rest] = value;
    }
  }
}

template <class T>
[[gnu::always_inline]] inline void update_rows(T* rows, uint64_t count, const T* pivots, uint64_t n_pivots,
                                               uint64_t columns, uint64_t column, T* multipliers) {
  for (uint64_t r = 0; r < count; ++r) {
    find_multipliers(rows + r * columns, pivots, n_pivots, columns, column, multipliers + r * n_pivots);
  }
  constexpr uint64_t tile = kTileNbytes / sizeof(T);
  for (uint64_t begin = column + n_pivots; begin < columns; begin += tile) {
    const uint64_t end = std::min(columns, begin + tile);
    uint64_t r = 0;
    for (; r + kRowsAtOnce <= count; r += kRowsAtOnce) {
      subtract<T, kRowsAtOnce>(rows + r * columns, pivots, n_pivots, columns, multipliers + r * n_pivots, begin, end);
    }
    for (; r < count; ++r) {
      subtract<T, 1>(rows + r * columns, pivots, n_pivots, columns, multipliers + r * n_pivots, begin, end);
    }
  }
}

POLYMUX_VECTOR_CLONES void update(float* rows, uint64_t count, const float* pivots, uint64_t n_pivots, uint64_t columns,
                                  uint64_t column, float* multipliers) {
  update_rows(rows, count, pivots, n_pivots, columns, column, multipliers);
}
POLYMUX_VECTOR_CLONES void update(double* rows, uint64_t count, const double* pivots, uint64_t n_pivots,
                                  uint64_t columns, uint64_t column, double* multipliers) {
  update_rows(rows, count, pivots, n_pivots, columns, column, multipliers);
}

// Checks `rows` (r, columns) and `pivots` (m, columns) against `first` and `column`.
void require_fit(const Array& rows, const Array& pivots, int64_t first, int64_t column) {
  require_rank(rows, 2, "(rows, columns)");
  require_rank(pivots, 2, "(pivots, columns)");
  require_same_dtype(pivots, rows);
  const int64_t n_pivots = pivots.shape()[0], columns = rows.shape()[1];
  if (n_pivots < 1 || n_pivots > static_cast<int64_t>(kMostPivots) || pivots.shape()[1] != columns) {
    refuse("pivots has shape " + shape_text(pivots.shape()) + ", expected 1 to " + std::to_string(kMostPivots) +
           " rows of " + std::to_string(columns) + " columns");
  }
  if (first < 0 || first > rows.shape()[0]) {
    refuse("first is " + std::to_string(first) + ", expected 0 to " + std::to_string(rows.shape()[0]) +
           " for rows of shape " + shape_text(rows.shape()));
  }
  if (column < 0 || column > columns - n_pivots) {
    refuse("column is " + std::to_string(column) + ", expected 0 to " + std::to_string(columns - n_pivots) + " for " +
           std::to_string(n_pivots) + " pivots in " + std::to_string(columns) + " columns");
  }
}

}  // namespace

POLYMUX_KERNEL(gaussian_pivots) {
  return run(call, [](Operands& operands) {
    const Array rows = operands.buffer("rows"), pivots = operands.buffer("pivots");
    operands.finish();
    const auto first = operands.scalar<int64_t>("first"), column = operands.scalar<int64_t>("column");
    require_fit(rows, pivots, first, column);
    require_apart(pivots, rows);
    const uint64_t n_pivots = pivots.extent(0), columns = pivots.extent(1), k = static_cast<uint64_t>(column);
    if (static_cast<uint64_t>(first) + n_pivots > rows.extent(0)) {
      refuse("first is " + std::to_string(first) + ", expected 0 to " +
             std::to_string(rows.shape()[0] - pivots.shape()[0]) + " for " + std::to_string(n_pivots) +
             " pivots of rows of shape " + shape_text(rows.shape()));
    }
    for_dtype<float, double>(rows, [&]<class T>() {
      T* out = pivots.as<T>();
      std::copy_n(rows.as<T>() + static_cast<uint64_t>(first) * columns, pivots.count, out);
      T multipliers[kMostPivots];
      for (uint64_t j = 0; j + 1 < n_pivots; ++j) {
        if (out[j * columns + k + j] == 0) {
          refuse("the pivot in column " + std::to_string(k + j) +
                 " is 0: this elimination does not pivot; reorder the rows first");
        }
        for (uint64_t i = j + 1; i < n_pivots; ++i) {
          update(out + i * columns, 1, out + j * columns, 1, columns, k + j, multipliers);
        }
      }
    });
  });
}

POLYMUX_KERNEL(gaussian_update) {
  return run(call, [](Operands& operands) {
    const Array rows = operands.buffer("rows"), pivots = operands.buffer("pivots"), out = operands.buffer("rows_out");
    operands.finish();
    const auto first = operands.scalar<int64_t>("first"), column = operands.scalar<int64_t>("column");
    require_fit(rows, pivots, first, column);
    require_same_dtype(out, rows);
    require_same_shape(out, rows);
    require_apart_or_same(out, rows);
    require_apart(out, pivots);
    const uint64_t n_pivots = pivots.extent(0), columns = pivots.extent(1), begin = static_cast<uint64_t>(first),
                   k = static_cast<uint64_t>(column);
    for_dtype<float, double>(rows, [&]<class T>() {
      const T* given = pivots.as<T>();
      for (uint64_t j = 0; j < n_pivots; ++j) {
        if (begin < rows.extent(0) && given[j * columns + k + j] == 0) {
          refuse("the pivot in column " + std::to_string(k + j) +
                 " is 0: this elimination does not pivot; reorder the rows first");
        }
      }
      const bool elsewhere = out.data != rows.data;
      if (elsewhere) {
        std::copy_n(rows.as<T>(), begin * columns, out.as<T>());
      }
      const uint64_t flop_per_row = 2 * n_pivots * (columns - k);
      std::vector<T> multipliers((rows.extent(0) - begin) * n_pivots);
      parallel_for(operands.threads(), rows.extent(0) - begin, kGrainFlop / flop_per_row + kRowsAtOnce,
                   [&](uint64_t from, uint64_t until) {
                     if (elsewhere) {
                       std::copy_n(rows.as<T>() + (begin + from) * columns, (until - from) * columns,
                                   out.as<T>() + (begin + from) * columns);
                     }
                     update(out.as<T>() + (begin + from) * columns, until - from, given, n_pivots, columns, k,
                            multipliers.data() + from * n_pivots);
                   });
    });
  });
}
