// max_pool(x) -> y, taps: the largest element that a window sees, and which of its taps that was.
// max_pool_gradient(dy, taps) -> dx: each element of dy goes where its maximum came from.
#include <atomic>
#include <type_traits>

#include "parallel.hpp"
#include "window.hpp"

using namespace polymux::kernels;

namespace {

constexpr int64_t kMaxTaps = 255;
constexpr int64_t kStrip = 64;  // neighbouring windows that are worked on at a time
constexpr int32_t kNone = 256;  // no tap seen yet

// Windows [0, count) of a strip look through one tap at every `stride`-th element of a line. The first of equal
// elements counts, and a NaN stays.
template <class T>
[[gnu::always_inline]] inline void look(const T* line, int64_t stride, int64_t count, int32_t tap, T* best,
                                        int32_t* taps) {
  for (int64_t i = 0; i < count; ++i) {
    const T value = line[i * stride];
    const bool better = value > best[i] || value != value || taps[i] == kNone;
    best[i] = better ? value : best[i];
    taps[i] = better ? tap : taps[i];
  }
}

template <class T>
[[gnu::always_inline]] inline void pool_strip(const Window& window, const T* image, int64_t oy, int64_t first,
                                              int64_t last, T* y, uint8_t* taps) {
  T best[kStrip];
  int32_t where[kStrip];
  std::fill_n(best, kStrip, T{});
  std::fill_n(where, kStrip, kNone);
  for (int64_t ky = 0; ky < window.y.kernel; ++ky) {
    const int64_t row = window.y.at(oy, ky);
    if (row < 0 || row >= window.y.size) {
      continue;
    }
    for (int64_t kx = 0; kx < window.x.kernel; ++kx) {
      const int64_t begin = std::max(first, window.x.begin(kx)), count = std::min(last, window.x.end(kx)) - begin;
      const T* line = image + row * window.x.size + window.x.at(begin, kx);
      const auto tap = static_cast<int32_t>(ky * window.x.kernel + kx);
      if (window.x.stride == 2) {
        look(line, 2, count, tap, best + (begin - first), where + (begin - first));
      } else {
        look(line, window.x.stride, count, tap, best + (begin - first), where + (begin - first));
      }
    }
  }
  std::copy_n(best, last - first, y);
  std::transform(where, where + (last - first), taps, [](int32_t tap) { return static_cast<uint8_t>(tap); });
}

// kLanes neighbouring windows of 2 x 2 elements, two apart: the usual pooling, in vectors of the compiler's.
template <int kLanes, class T, class Index>
[[gnu::always_inline]] inline void pool_pairs(const T* line, int64_t width, T* y, uint8_t* taps) {
  typedef T Values __attribute__((vector_size(kLanes * sizeof(T))));
  typedef Index Indices __attribute__((vector_size(kLanes * sizeof(T))));
  typedef uint8_t Bytes __attribute__((vector_size(kLanes)));
  Indices even, odd;
  for (int i = 0; i < kLanes; ++i) {
    even[i] = 2 * i;
    odd[i] = 2 * i + 1;
  }
  Values best{};
  Indices where{};
  for (int row = 0; row < 2; ++row) {
    Values low, high;
    std::memcpy(&low, line + row * width, sizeof(low));
    std::memcpy(&high, line + row * width + kLanes, sizeof(high));
    for (int column = 0; column < 2; ++column) {
      const Values value = __builtin_shuffle(low, high, column == 0 ? even : odd);
      if (row + column == 0) {
        best = value;
        continue;
      }
      const Indices better = (value > best) | (value != value);
      best = better ? value : best;
      where = better ? Indices{} + (2 * row + column) : where;
    }
  }
  const Bytes narrow = __builtin_convertvector(where, Bytes);
  std::memcpy(y, &best, sizeof(best));
  std::memcpy(taps, &narrow, sizeof(narrow));
}

// Rows of kLanes windows and more; the last ones of a row may be pooled twice.
template <int kLanes, class T, class Index>
[[gnu::always_inline]] inline void pool_all_pairs(const Window& window, const T* image, T* y, uint8_t* taps) {
  const int64_t positions = window.x.positions;
  for (int64_t oy = 0; oy < window.y.positions; ++oy, y += positions, taps += positions) {
    for (int64_t ox = 0; ox < positions; ox += kLanes) {
      const int64_t at = std::min(ox, positions - kLanes);
      pool_pairs<kLanes, T, Index>(image + 2 * (oy * window.x.size + at), window.x.size, y + at, taps + at);
    }
  }
}

bool are_pairs(const Window& window) {
  bool found = window.x.positions >= 4;
  for (const WindowAxis* axis : {&window.y, &window.x}) {
    found = found && axis->kernel == 2 && axis->stride == 2 && axis->padding == 0;
  }
  return found;
}

template <class T>
[[gnu::always_inline]] inline void pool_plane(const Window& window, const T* image, T* y, uint8_t* taps) {
  using Index = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;
  if (are_pairs(window)) {
    return window.x.positions >= 8 ? pool_all_pairs<8, T, Index>(window, image, y, taps)
                                   : pool_all_pairs<4, T, Index>(window, image, y, taps);
  }
  for (int64_t oy = 0; oy < window.y.positions; ++oy) {
    for (int64_t first = 0; first < window.x.positions; first += kStrip) {
      const int64_t last = std::min(first + kStrip, window.x.positions), at = oy * window.x.positions + first;
      pool_strip(window, image, oy, first, last, y + at, taps + at);
    }
  }
}

POLYMUX_VECTOR_CLONES void pool(const Window& window, const float* image, float* y, uint8_t* taps) {
  pool_plane(window, image, y, taps);
}
POLYMUX_VECTOR_CLONES void pool(const Window& window, const double* image, double* y, uint8_t* taps) {
  pool_plane(window, image, y, taps);
}

// False when a tap points outside the window or the image. Window after window, so that sums have one order.
template <class T>
bool scatter_plane(const Window& window, const T* dy, const uint8_t* taps, T* image) {
  int64_t rows[kMaxTaps], columns[kMaxTaps];
  const int64_t count = window.y.kernel * window.x.kernel;
  for (int64_t tap = 0; tap < count; ++tap) {
    rows[tap] = tap / window.x.kernel - window.y.padding;
    columns[tap] = tap % window.x.kernel - window.x.padding;
  }
  std::fill_n(image, window.y.size * window.x.size, T{});
  for (int64_t oy = 0; oy < window.y.positions; ++oy) {
    for (int64_t ox = 0; ox < window.x.positions; ++ox, ++dy, ++taps) {
      if (*taps >= count) {
        return false;
      }
      const int64_t row = oy * window.y.stride + rows[*taps], column = ox * window.x.stride + columns[*taps];
      if (row < 0 || row >= window.y.size || column < 0 || column >= window.x.size) {
        return false;
      }
      image[row * window.x.size + column] += *dy;
    }
  }
  return true;
}

Window pooling_window(Operands& operands, const Array& image) {
  const Window window = take_window(operands, image, false);
  const WindowAxis* axes[] = {&window.y, &window.x};
  for (int i = 0; i < 2; ++i) {
    if (axes[i]->size == 0) {
      refuse(std::string(image.name) + " has shape " + shape_text(image.shape()) + ": no elements have no maximum");
    }
    if (axes[i]->padding > axes[i]->kernel / 2) {
      refuse(std::string("padding_") + "hw"[i] + " is " + std::to_string(axes[i]->padding) +
             ", expected at most half of the window's " + std::to_string(axes[i]->kernel));
    }
  }
  if (window.y.kernel > kMaxTaps || window.x.kernel > kMaxTaps || window.y.kernel * window.x.kernel > kMaxTaps) {
    refuse("the window has " + std::to_string(window.y.kernel) + " x " + std::to_string(window.x.kernel) +
           " taps, expected at most " + std::to_string(kMaxTaps));
  }
  return window;
}

void require_pooled(const Array& array, const Window& window) {
  const int64_t expected[] = {window.images, window.channels, window.y.positions, window.x.positions};
  require_shape(array, expected, "N, C and the window's positions");
}

}  // namespace

POLYMUX_KERNEL(max_pool) {
  return run(call, [](Operands& operands) {
    const Array x = operands.buffer("x"), y = operands.buffer("y"), taps = operands.buffer("taps");
    operands.finish();
    require_same_dtype(y, x);
    require_dtype(taps, {POLYMUX_U8});
    const Window window = pooling_window(operands, x);
    require_pooled(y, window);
    require_pooled(taps, window);
    require_apart(y, x);
    require_apart(taps, x);
    require_apart(taps, y);
    if (y.count == 0) {
      return;
    }
    const uint64_t plane = x.extent(2) * x.extent(3);
    const auto pooled = static_cast<uint64_t>(window.y.positions * window.x.positions);
    for_dtype<float, double>(x, [&]<class T>() {
      parallel_for(operands.threads(), x.extent(0) * x.extent(1), kGrainNbytes / (plane * sizeof(T)) + 1,
                   [&](uint64_t begin, uint64_t end) {
                     for (uint64_t i = begin; i < end; ++i) {
                       pool(window, x.as<T>() + i * plane, y.as<T>() + i * pooled, taps.as<uint8_t>() + i * pooled);
                     }
                   });
    });
  });
}

POLYMUX_KERNEL(max_pool_gradient) {
  return run(call, [](Operands& operands) {
    const Array dy = operands.buffer("dy"), taps = operands.buffer("taps"), dx = operands.buffer("dx");
    operands.finish();
    require_same_dtype(dx, dy);
    require_dtype(taps, {POLYMUX_U8});
    const Window window = pooling_window(operands, dx);
    require_pooled(dy, window);
    require_pooled(taps, window);
    require_apart(dx, dy);
    require_apart(dx, taps);
    if (dx.count == 0) {
      return;
    }
    const uint64_t plane = dx.extent(2) * dx.extent(3);
    const auto pooled = static_cast<uint64_t>(window.y.positions * window.x.positions);
    std::atomic<bool> sound{true};
    for_dtype<float, double>(dx, [&]<class T>() {
      parallel_for(operands.threads(), dx.extent(0) * dx.extent(1), kGrainNbytes / (plane * sizeof(T)) + 1,
                   [&](uint64_t begin, uint64_t end) {
                     for (uint64_t i = begin; i < end; ++i) {
                       if (!scatter_plane(window, dy.as<T>() + i * pooled, taps.as<uint8_t>() + i * pooled,
                                          dx.as<T>() + i * plane)) {
                         sound = false;
                       }
                     }
                   });
    });
    if (!sound) {
      refuse("taps names a tap outside the window or the image; give what max_pool wrote with the same window");
    }
  });
}
