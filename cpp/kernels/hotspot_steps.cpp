// hotspot_steps(temperature, power, margins, constants, steps) -> temperature_out, its first and last rows: several
// steps of `stencil` on a band of rows. The steps follow each other down the rows: when a row of one step is there, the
// row above it of the next step is computed, so that everything but the first and last step stays in the cache.
#include <atomic>

#include "operands.hpp"
#include "parallel.hpp"
#include "stencil.hpp"

using namespace polymux::kernels;

namespace {

constexpr uint64_t kTileColumns = 1024;
constexpr uint64_t kKeptRows = 4;  // of each step: three that the next one reads, one that comes in

// Rows that lie in up to three arrays: the margin above (its last rows), the band, the margin below.
template <class T>
struct Grid {
  const T *above, *centre, *below;
  uint64_t n_above, n_centre, n_below, columns;

  uint64_t rows() const { return n_above + n_centre + n_below; }
  const T* row(uint64_t r) const {
    if (r < n_above) return above + r * columns;
    r -= n_above;
    return r < n_centre ? centre + r * columns : below + (r - n_centre) * columns;
  }
};

struct Range {
  uint64_t begin, end;
  bool contains(uint64_t i) const { return begin <= i && i < end; }
};

Range widened(Range range, uint64_t by, uint64_t limit) {
  return {range.begin > by ? range.begin - by : 0, std::min(limit, range.end + by)};
}

// One thread's rows and columns of the output; `kept` has room for kKeptRows rows of each step but the last.
template <class T>
void advance(const StencilConstants<T>& k, const Grid<T>& now, const Grid<T>& power, T* out, uint64_t steps, Range rows,
             Range columns, T* kept, uint64_t stride) {
  const Range widest = widened(columns, steps, now.columns);
  // Row r of step t from column `widest.begin` on; steps 0 and `steps` lie in the task's buffers.
  const auto source = [&](uint64_t t, uint64_t r) -> const T* {
    return t == 0 ? now.row(r) + widest.begin : kept + ((t - 1) * kKeptRows + r % kKeptRows) * stride;
  };
  const uint64_t last_row = now.rows() - 1;
  for (uint64_t i = widened(rows, steps, now.rows()).begin; i < rows.end + steps; ++i) {
    for (uint64_t t = 1; t <= steps && t <= i; ++t) {
      const uint64_t r = i - t;
      if (!widened(rows, steps - t, now.rows()).contains(r)) continue;
      const Range c = widened(columns, steps - t, now.columns);
      const uint64_t offset = c.begin - widest.begin;
      T* target = t == steps ? out + (r - now.n_above) * now.columns + c.begin
                             : kept + ((t - 1) * kKeptRows + r % kKeptRows) * stride + offset;
      stencil_line(k, source(t - 1, r) + offset, source(t - 1, r == 0 ? 0 : r - 1) + offset,
                   source(t - 1, std::min(r + 1, last_row)) + offset, power.row(r) + c.begin, target, c.end - c.begin,
                   c.begin == 0, c.end == now.columns);
    }
  }
}

template <class T>
Grid<T> grid(const Array& centre, const Array& above, const Array& below, uint64_t steps) {
  const uint64_t columns = centre.extent(1);
  const uint64_t n_above = std::min(above.extent(0), steps), n_below = std::min(below.extent(0), steps);
  return {above.as<T>() + (above.extent(0) - n_above) * columns,
          centre.as<T>(),
          below.as<T>(),
          n_above,
          centre.extent(0),
          n_below,
          columns};
}

void require_margin(const Array& margin, const Array& band, uint64_t steps) {
  require_same_dtype(margin, band);
  require_rank(margin, 2, "(rows, columns)");
  if (margin.shape()[1] != band.shape()[1] || (margin.shape()[0] != 0 && margin.extent(0) < steps)) {
    refuse(std::string(margin.name) + " has shape " + shape_text(margin.shape()) +
           ", expected 0 rows (an edge) or at least " + std::to_string(steps) + " (the steps) of " +
           std::to_string(band.shape()[1]) + " columns");
  }
}

void require_copied_rows(const Array& rows, const Array& band) {
  require_same_dtype(rows, band);
  require_rank(rows, 2, "(rows, columns)");
  if (rows.shape()[1] != band.shape()[1] || rows.shape()[0] > band.shape()[0]) {
    refuse(std::string(rows.name) + " has shape " + shape_text(rows.shape()) + ", expected at most " +
           std::to_string(band.shape()[0]) + " rows of " + std::to_string(band.shape()[1]) + " columns");
  }
}

}  // namespace

POLYMUX_KERNEL(hotspot_steps) {
  return run(call, [](Operands& operands) {
    const Array now = operands.buffer("temperature"), power = operands.buffer("power"),
                above = operands.buffer("above"), below = operands.buffer("below"),
                power_above = operands.buffer("power_above"), power_below = operands.buffer("power_below"),
                next = operands.buffer("temperature_out"), top = operands.buffer("top_out"),
                bottom = operands.buffer("bottom_out");
    operands.finish();
    require_rank(now, 2, "(rows, columns)");
    for_dtype<float, double>(now, [&]<class T>() {
      const StencilConstants<T> constants = stencil_constants<T>(operands);
      const auto asked = operands.scalar<int32_t>("steps");
      if (asked < 1 || asked > 64) {
        refuse("steps is " + std::to_string(asked) + ", expected 1 to 64");
      }
      const auto steps = static_cast<uint64_t>(asked);
      for (const Array* other : {&power, &next}) {
        require_same_dtype(*other, now);
        require_same_shape(*other, now);
      }
      require_margin(above, now, steps);
      require_margin(below, now, steps);
      require_margin(power_above, now, steps);
      require_margin(power_below, now, steps);
      require_same_shape(power_above, above);
      require_same_shape(power_below, below);
      require_copied_rows(top, now);
      require_copied_rows(bottom, now);
      for (const Array* output : {&next, &top, &bottom}) {
        for (const Array* input : {&now, &power, &above, &below, &power_above, &power_below}) {
          require_apart(*output, *input);
        }
      }
      require_apart(next, top);
      require_apart(next, bottom);
      require_apart(top, bottom);
      if (now.count == 0) {
        return;
      }
      const Grid<T> grid_now = grid<T>(now, above, below, steps),
                    grid_power = grid<T>(power, power_above, power_below, steps);
      const uint64_t rows = now.extent(0), columns = now.extent(1);
      const uint64_t stride = (std::min(columns, kTileColumns) + 2 * steps + 15) / 16 * 16;
      const uint64_t kept_count = kKeptRows * steps * stride;
      std::vector<T> kept(kept_count * std::max<uint32_t>(operands.threads(), 1));
      std::atomic<uint64_t> next_thread = 0;
      parallel_for(operands.threads(), rows, kGrainNbytes / (columns * sizeof(T) * steps) + 2 * steps,
                   [&](uint64_t begin, uint64_t end) {
                     T* own = kept.data() + kept_count * next_thread++;
                     for (uint64_t c = 0; c < columns; c += kTileColumns) {
                       advance(constants, grid_now, grid_power, next.as<T>(), steps,
                               {grid_now.n_above + begin, grid_now.n_above + end},
                               {c, std::min(columns, c + kTileColumns)}, own, stride);
                     }
                   });
      std::copy_n(next.as<T>(), top.count, top.as<T>());
      std::copy_n(next.as<T>() + next.count - bottom.count, bottom.count, bottom.as<T>());
    });
  });
}
