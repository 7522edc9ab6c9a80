// im2col(x) -> columns: the windows of images as columns of matrices.
#include "parallel.hpp"
#include "window.hpp"

using namespace polymux::kernels;

namespace {

// One row of one image's matrix: what tap (ky, kx) of one channel sees at every position.
template <class T>
void gather_row(const Window& window, const T* image, T* row, int64_t ky, int64_t kx) {
  const int64_t begin = window.x.begin(kx), end = std::max(begin, window.x.end(kx));
  for (int64_t oy = 0; oy < window.y.positions; ++oy, row += window.x.positions) {
    const int64_t y = window.y.at(oy, ky);
    if (y < 0 || y >= window.y.size) {
      std::fill_n(row, window.x.positions, T{});
      continue;
    }
    const T* line = image + y * window.x.size;
    std::fill_n(row, begin, T{});
    if (window.x.stride == 1 && begin < end) {
      std::memcpy(row + begin, line + window.x.at(begin, kx), static_cast<size_t>(end - begin) * sizeof(T));
    } else {
      for (int64_t ox = begin; ox < end; ++ox) {
        row[ox] = line[window.x.at(ox, kx)];
      }
    }
    std::fill_n(row + end, window.x.positions - end, T{});
  }
}

}  // namespace

POLYMUX_KERNEL(im2col) {
  return run(call, [](Operands& operands) {
    const Array x = operands.buffer("x"), columns = operands.buffer("columns");
    operands.finish();
    require_same_dtype(columns, x);
    const Window window = window_of(operands, x, columns);
    require_apart(columns, x);
    if (columns.count == 0) {
      return;
    }
    const auto taps = static_cast<uint64_t>(window.y.kernel * window.x.kernel);
    const uint64_t rows = columns.extent(0) * columns.extent(1), positions = columns.extent(2);
    for_itemsize(x, [&]<class T>() {
      parallel_for(operands.threads(), rows, kGrainNbytes / (positions * sizeof(T)) + 1,
                   [&](uint64_t begin, uint64_t end) {
                     for (uint64_t row = begin; row < end; ++row) {
                       const auto tap = static_cast<int64_t>(row % taps);
                       const T* image = x.as<T>() + row / taps * x.extent(2) * x.extent(3);
                       gather_row(window, image, columns.as<T>() + row * positions, tap / window.x.kernel,
                                  tap % window.x.kernel);
                     }
                   });
    });
  });
}
