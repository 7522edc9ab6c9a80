// im2col(x) -> columns: the windows of images as columns of matrices.
#include "parallel.hpp"
#include "window.hpp"

using namespace polymux::kernels;

namespace {

// Lines of kNbytes to 2 * kNbytes as two overlapping moves each, without a call.
template <size_t kNbytes>
void copy_short_lines(char* to, const char* from, int64_t lines, size_t nbytes, size_t step_nbytes) {
  for (; lines > 0; --lines, to += nbytes, from += step_nbytes) {
    char first[kNbytes], last[kNbytes];
    std::memcpy(first, from, kNbytes);
    std::memcpy(last, from + nbytes - kNbytes, kNbytes);
    std::memcpy(to, first, kNbytes);
    std::memcpy(to + nbytes - kNbytes, last, kNbytes);
  }
}

// Lines that lie `step_nbytes` apart, one behind the other; they are short as a rule.
void copy_lines(void* target, const void* source, int64_t lines, size_t nbytes, size_t step_nbytes) {
  auto* to = static_cast<char*>(target);
  const auto* from = static_cast<const char*>(source);
  if (nbytes >= 16 && nbytes <= 32) {
    copy_short_lines<16>(to, from, lines, nbytes, step_nbytes);
  } else if (nbytes > 32 && nbytes <= 64) {
    copy_short_lines<32>(to, from, lines, nbytes, step_nbytes);
  } else if (nbytes > 64 && nbytes <= 128) {
    copy_short_lines<64>(to, from, lines, nbytes, step_nbytes);
  } else {
    for (; lines > 0; --lines, to += nbytes, from += step_nbytes) {
      std::memcpy(to, from, nbytes);
    }
  }
}

// One row of one image's matrix: what tap (ky, kx) of one channel sees at every position.
template <class T>
void gather_row(const Window& window, const T* image, T* row, int64_t ky, int64_t kx) {
  const int64_t width = window.x.positions, height = window.y.positions;
  const int64_t left = window.x.begin(kx), right = std::max(left, window.x.end(kx));
  const int64_t top = window.y.begin(ky), bottom = std::max(top, window.y.end(ky));
  const int64_t step = window.y.stride * window.x.size;  // between the lines that two positions see
  std::fill_n(row, top * width, T{});
  std::fill_n(row + bottom * width, (height - bottom) * width, T{});
  if (left == right) {
    std::fill_n(row + top * width, (bottom - top) * width, T{});
    return;
  }
  const T* line = image + window.y.at(top, ky) * window.x.size + window.x.at(left, kx);
  if (window.x.stride == 1 && right - left == width) {
    copy_lines(row + top * width, line, bottom - top, static_cast<size_t>(width) * sizeof(T),
               static_cast<size_t>(step) * sizeof(T));
    return;
  }
  for (int64_t oy = top; oy < bottom; ++oy, line += step) {
    T* const out = row + oy * width;
    std::fill_n(out, left, T{});
    for (int64_t ox = left; ox < right; ++ox) {
      out[ox] = line[(ox - left) * window.x.stride];
    }
    std::fill_n(out + right, width - right, T{});
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
