// transpose(x) -> y: swaps the last two axes.
#include <utility>

#include "operands.hpp"
#include "parallel.hpp"

using namespace polymux::kernels;

namespace {

constexpr uint64_t kTile = 32;

// Rows [begin, end) of the (rows, columns) matrix x into columns of y.
template <class T>
void transpose_rows(const T* x, T* y, uint64_t rows, uint64_t columns, uint64_t begin, uint64_t end) {
  for (uint64_t column = 0; column < columns; column += kTile) {
    const uint64_t column_end = std::min(column + kTile, columns);
    for (uint64_t row = begin; row < end; row += kTile) {
      const uint64_t row_end = std::min(row + kTile, end);
      for (uint64_t j = column; j < column_end; ++j) {
        for (uint64_t i = row; i < row_end; ++i) {
          y[j * rows + i] = x[i * columns + j];
        }
      }
    }
  }
}

}  // namespace

POLYMUX_KERNEL(transpose) {
  return run(call, [](Operands& operands) {
    const Array x = operands.buffer("x"), y = operands.buffer("y");
    operands.finish();
    if (x.rank < 2) {
      refuse("x has shape " + shape_text(x.shape()) + ", expected 2 or more dimensions (..., rows, columns)");
    }
    require_same_dtype(y, x);
    auto expected = x.extents;
    const auto last = static_cast<size_t>(x.rank - 1);
    std::swap(expected[last - 1], expected[last]);
    require_shape(y, std::span(expected).first(last + 1), "x with its last two axes swapped");
    require_apart(y, x);
    if (x.count == 0) {
      return;
    }
    const uint64_t rows = x.extent(x.rank - 2), columns = x.extent(x.rank - 1);
    const uint64_t strips = (rows + kTile - 1) / kTile;  // per matrix
    const uint64_t grain = kGrainNbytes / (kTile * columns * x.itemsize) + 1;
    for_itemsize(x, [&]<class T>() {
      parallel_for(operands.threads(), x.count / (rows * columns) * strips, grain, [&](uint64_t begin, uint64_t end) {
        for (uint64_t strip = begin; strip < end; ++strip) {
          const uint64_t matrix = strip / strips * rows * columns, row = strip % strips * kTile;
          transpose_rows(x.as<T>() + matrix, y.as<T>() + matrix, rows, columns, row, std::min(row + kTile, rows));
        }
      });
    });
  });
}
