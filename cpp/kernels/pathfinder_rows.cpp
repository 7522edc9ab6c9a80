// pathfinder_rows(wall, cost, left, right, row, rows) -> cost_out, its first and last elements: the cheapest ways
// through some rows of a grid, by dynamic programming.
#include <tuple>

#include "operands.hpp"
#include "parallel.hpp"

using namespace polymux::kernels;

namespace {

constexpr uint64_t kTile = 1024;         // columns whose costs stay in the first-level cache
constexpr uint64_t kMostRows = 1 << 10;  // a tile is computed with so many columns more at each side

// Costs after one more row, for `count` columns; `before` has one more at each side.
POLYMUX_VECTOR_CLONES void add_row(const int32_t* __restrict before, const int32_t* __restrict wall,
                                   int32_t* __restrict after, uint64_t count) {
  for (uint64_t j = 0; j < count; ++j) {
    const int32_t sides = before[j] < before[j + 2] ? before[j] : before[j + 2];
    const int32_t least = sides < before[j + 1] ? sides : before[j + 1];
    after[j] = static_cast<int32_t>(static_cast<uint32_t>(wall[j]) + static_cast<uint32_t>(least));
  }
}

// Costs of columns that lie in three arrays, one after the other.
struct Line {
  const int32_t *left, *centre, *right;
  uint64_t n_left, n_centre, n_right;

  void read(uint64_t begin, uint64_t end, int32_t* to) const {
    for (const auto& [part, offset, n] :
         {std::tuple{left, uint64_t{0}, n_left}, {centre, n_left, n_centre}, {right, n_left + n_centre, n_right}}) {
      const uint64_t from = std::max(begin, offset), until = std::min(end, offset + n);
      if (from < until) std::copy(part + (from - offset), part + (until - offset), to + (from - begin));
    }
  }
};

// Rows lie far apart, in small pages perhaps: the processor does not foresee the next one.
void prefetch(const int32_t* row, uint64_t count) {
  for (uint64_t j = 0; j < count; j += 64 / sizeof(int32_t)) {
    __builtin_prefetch(row + j);
  }
}

// Columns [begin, end) of the line after `rows` rows of the wall.
void walk(const Line& line, const int32_t* wall, uint64_t columns, uint64_t rows, uint64_t begin, uint64_t end,
          int32_t* out) {
  int32_t lines[2][kTile + 2 * kMostRows + 2];
  int32_t *before = lines[0], *after = lines[1];  // element 0 is the column before `low`
  uint64_t low = begin > rows ? begin - rows : 0, high = std::min(columns, end + rows);
  line.read(low, high, before + 1);
  for (uint64_t i = 0; i < rows; ++i) {
    before[0] = before[1];  // beyond an edge: what lies at the edge. Elsewhere the next row leaves that column out.
    before[high - low + 1] = before[high - low];
    const uint64_t ahead = rows - i - 1;
    const uint64_t next_low = begin > ahead ? begin - ahead : 0, next_high = std::min(columns, end + ahead);
    const uint64_t skipped = next_low - low;
    if (i + 2 < rows) prefetch(wall + (i + 2) * columns + next_low, next_high - next_low);
    add_row(before + skipped, wall + i * columns + next_low, after + 1, next_high - next_low);
    std::swap(before, after);
    low = next_low;
    high = next_high;
  }
  std::copy(before + 1, before + 1 + (end - begin), out);
}

void require_line(const Array& array) {
  require_dtype(array, {POLYMUX_I32});
  require_rank(array, 1, "(columns,)");
}

}  // namespace

POLYMUX_KERNEL(pathfinder_rows) {
  return run(call, [](Operands& operands) {
    const Array wall = operands.buffer("wall"), cost = operands.buffer("cost"), left = operands.buffer("left"),
                right = operands.buffer("right"), cost_out = operands.buffer("cost_out"),
                left_out = operands.buffer("left_out"), right_out = operands.buffer("right_out");
    operands.finish();
    const auto row = operands.scalar<int64_t>("row"), rows = operands.scalar<int64_t>("rows");
    require_dtype(wall, {POLYMUX_I32});
    require_rank(wall, 2, "(rows, columns)");
    for (const Array* line : {&cost, &left, &right, &cost_out, &left_out, &right_out}) {
      require_line(*line);
    }
    if (row < 0 || rows < 0 || row > wall.shape()[0] || rows > wall.shape()[0] - row ||
        rows > static_cast<int64_t>(kMostRows)) {
      refuse("row is " + std::to_string(row) + " and rows is " + std::to_string(rows) + "; expected rows of the " +
             std::to_string(wall.shape()[0]) + " that the wall has, at most " + std::to_string(kMostRows));
    }
    const uint64_t columns = left.count + cost.count + right.count;
    if (wall.extent(1) != columns) {
      refuse("wall has shape " + shape_text(wall.shape()) + ", expected " + std::to_string(columns) +
             " columns (those of left, cost and right)");
    }
    for (const Array* margin : {&left, &right}) {
      if (margin->count != 0 && margin->count < static_cast<uint64_t>(rows)) {
        refuse(std::string(margin->name) + " has " + std::to_string(margin->count) +
               " elements, expected 0 (an edge) or at least " + std::to_string(rows) + " (the rows)");
      }
    }
    require_same_shape(cost_out, cost);
    for (const Array* copied : {&left_out, &right_out}) {
      if (copied->count > cost.count) {
        refuse(std::string(copied->name) + " has " + std::to_string(copied->count) + " elements, expected at most " +
               std::to_string(cost.count) + " (those of cost)");
      }
    }
    for (const Array* output : {&cost_out, &left_out, &right_out}) {
      for (const Array* input : {&wall, &cost, &left, &right}) {
        require_apart(*output, *input);
      }
    }
    require_apart(cost_out, left_out);
    require_apart(cost_out, right_out);
    require_apart(left_out, right_out);
    const Line line{left.as<int32_t>(), cost.as<int32_t>(), right.as<int32_t>(), left.count, cost.count, right.count};
    const auto count = static_cast<uint64_t>(rows);
    const int32_t* first = wall.as<int32_t>() + static_cast<uint64_t>(row) * columns;
    parallel_for(operands.threads(), cost.count, kGrainNbytes / (4 * count + 4) + 4 * count,
                 [&](uint64_t begin, uint64_t end) {
                   for (uint64_t c = begin; c < end; c += kTile) {
                     walk(line, first, columns, count, left.count + c, left.count + std::min(end, c + kTile),
                          cost_out.as<int32_t>() + c);
                   }
                 });
    std::copy_n(cost_out.as<int32_t>(), left_out.count, left_out.as<int32_t>());
    std::copy_n(cost_out.as<int32_t>() + cost.count - right_out.count, right_out.count, right_out.as<int32_t>());
  });
}
