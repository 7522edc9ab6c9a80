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

// A scalar of 32 bits that is at least `least`.
inline int64_t take_count(Operands& operands, const char* name, int64_t least) {
  const int64_t value = operands.scalar<int32_t>(name);
  if (value < least) {
    refuse(std::string(name) + " is " + std::to_string(value) + ", expected " + std::to_string(least) + " or more");
  }
  return value;
}

// Checks that the window fits into the image's padded axis, and counts its positions.
inline void count_positions(const Array& image, const char* axis_name, WindowAxis& axis) {
  // Every factor is below 2^31 except the image's size, which is below 2^63 / itemsize: no overflow.
  const int64_t span = (axis.kernel - 1) * axis.dilation + 1;
  int64_t room = 0;
  if (__builtin_add_overflow(axis.size, 2 * axis.padding, &room) || room < span) {
    refuse(std::string(image.name) + " has shape " + shape_text(image.shape()) + ": its " + axis_name + " of " +
           std::to_string(axis.size) + " with padding is less than the window's " + std::to_string(span));
  }
  axis.positions = (room - span) / axis.stride + 1;
}

// Scalars kernel_h, kernel_w, stride_h, stride_w, padding_h, padding_w, and with `dilated` dilation_h, dilation_w
// (32-bit) for images of extents (N, C, height, width); `image` names them in messages.
inline Window take_window(Operands& operands, const Array& image, bool dilated) {
  Window window;
  window.y.kernel = take_count(operands, "kernel_h", 1);
  window.x.kernel = take_count(operands, "kernel_w", 1);
  window.y.stride = take_count(operands, "stride_h", 1);
  window.x.stride = take_count(operands, "stride_w", 1);
  window.y.padding = take_count(operands, "padding_h", 0);
  window.x.padding = take_count(operands, "padding_w", 0);
  window.y.dilation = dilated ? take_count(operands, "dilation_h", 1) : 1;
  window.x.dilation = dilated ? take_count(operands, "dilation_w", 1) : 1;
  require_rank(image, 4, "(N, C, H, W)");
  window.images = image.shape()[0];
  window.channels = image.shape()[1];
  window.y.size = image.shape()[2];
  window.x.size = image.shape()[3];
  count_positions(image, "height", window.y);
  count_positions(image, "width", window.x);
  return window;
}

// The window's scalars, and the shapes of `image` (N, C, H, W) and `columns` (N, C * kernel_h * kernel_w, positions),
// checked against each other.
inline Window window_of(Operands& operands, const Array& image, const Array& columns) {
  const Window window = take_window(operands, image, true);
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
