// A window that slides over images in NCHW order: what im2col and col2im share.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "operands.hpp"

namespace polymux::kernels {

// One axis of the window. Positions count from the image's first element, so they are negative in the padding.
struct WindowAxis {
  int64_t size = 0, kernel = 0, stride = 0, padding = 0, dilation = 0, positions = 0;

  int64_t at(int64_t position, int64_t tap) const { return position * stride - padding + tap * dilation; }
  // Window positions [begin, end) at which `tap` lies inside the image.
  int64_t begin(int64_t tap) const {
    const int64_t shift = padding - tap * dilation;
    return std::clamp<int64_t>(shift <= 0 ? 0 : (shift + stride - 1) / stride, 0, positions);
  }
  int64_t end(int64_t tap) const {
    const int64_t last = size - 1 + padding - tap * dilation;
    return std::clamp<int64_t>(last < 0 ? 0 : last / stride + 1, 0, positions);
  }
};

struct Window {
  int64_t images = 0, channels = 0;
  WindowAxis y, x;
};

// Scalars kernel_h, kernel_w, stride_h, stride_w, padding_h, padding_w, dilation_h, dilation_w (32-bit), and the shapes
// of `image` (N, C, H, W) and `columns` (N, C * kernel_h * kernel_w, positions), checked against each other.
inline Window window_of(Operands& operands, const Array& image, const Array& columns) {
  const char* names[] = {"kernel_h",  "kernel_w",  "stride_h",   "stride_w",
                         "padding_h", "padding_w", "dilation_h", "dilation_w"};
  int64_t values[8];
  for (int i = 0; i < 8; ++i) {
    values[i] = operands.scalar<int32_t>(names[i]);
    const int64_t least = i == 4 || i == 5 ? 0 : 1;
    if (values[i] < least) {
      refuse(std::string(names[i]) + " is " + std::to_string(values[i]) + ", expected " + std::to_string(least) +
             " or more");
    }
  }
  require_rank(image, 4, "(N, C, H, W)");
  Window window{image.shape()[0],
                image.shape()[1],
                {image.shape()[2], values[0], values[2], values[4], values[6]},
                {image.shape()[3], values[1], values[3], values[5], values[7]}};
  const char* axes[] = {"height", "width"};
  for (int i = 0; i < 2; ++i) {
    WindowAxis& axis = i == 0 ? window.y : window.x;
    // Every factor is below 2^31 except the image's size, which is below 2^63 / itemsize: no overflow.
    const int64_t span = (axis.kernel - 1) * axis.dilation + 1;
    int64_t room = 0;
    if (__builtin_add_overflow(axis.size, 2 * axis.padding, &room) || room < span) {
      refuse(std::string(image.name) + " has shape " + shape_text(image.shape()) + ": its " + axes[i] + " of " +
             std::to_string(axis.size) + " with padding is less than the window's " + std::to_string(span));
    }
    axis.positions = (room - span) / axis.stride + 1;
  }
  int64_t rows = window.channels, positions = 0;
  if (__builtin_mul_overflow(rows, window.y.kernel * window.x.kernel, &rows) ||
      __builtin_mul_overflow(window.y.positions, window.x.positions, &positions)) {
    refuse("the window does not fit into memory");
  }
  const int64_t expected[] = {window.images, rows, positions};
  require_shape(columns, expected,
                "N, C * kernel_h * kernel_w, " + std::to_string(window.y.positions) + " * " +
                    std::to_string(window.x.positions) + " positions");
  return window;
}

}  // namespace polymux::kernels
