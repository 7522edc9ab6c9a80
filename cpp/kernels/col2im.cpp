// col2im(columns) -> x: sums the columns of im2col back into images; the adjoint of im2col.
#include "parallel.hpp"
#include "window.hpp"

using namespace polymux::kernels;

namespace {

// All windows of one channel of one image; contributions are added in the order of the taps.
template <class T>
void scatter_channel(const Window& window, const T* columns, T* image) {
  std::fill_n(image, window.y.size * window.x.size, T{});
  for (int64_t ky = 0; ky < window.y.kernel; ++ky) {
    for (int64_t kx = 0; kx < window.x.kernel; ++kx) {
      const int64_t begin = window.x.begin(kx), end = window.x.end(kx);
      for (int64_t oy = 0; oy < window.y.positions; ++oy, columns += window.x.positions) {
        const int64_t y = window.y.at(oy, ky);
        if (y >= 0 && y < window.y.size) {
          T* line = image + y * window.x.size;
          for (int64_t ox = begin; ox < end; ++ox) {
            line[window.x.at(ox, kx)] += columns[ox];
          }
        }
      }
    }
  }
}

}  // namespace

POLYMUX_KERNEL(col2im) {
  return run(call, [](Operands& operands) {
    const Array columns = operands.buffer("columns"), x = operands.buffer("x");
    operands.finish();
    require_same_dtype(x, columns);
    const Window window = window_of(operands, x, columns);
    require_apart(x, columns);
    if (x.count == 0) {
      return;
    }
    const uint64_t channel = x.extent(2) * x.extent(3);
    const uint64_t channel_columns = static_cast<uint64_t>(window.y.kernel * window.x.kernel) * columns.extent(2);
    for_dtype<float, double>(x, [&]<class T>() {
      parallel_for(operands.threads(), x.extent(0) * x.extent(1), kGrainNbytes / (channel_columns * sizeof(T)) + 1,
                   [&](uint64_t begin, uint64_t end) {
                     for (uint64_t i = begin; i < end; ++i) {
                       scatter_channel(window, columns.as<T>() + i * channel_columns, x.as<T>() + i * channel);
                     }
                   });
    });
  });
}
