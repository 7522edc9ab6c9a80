// needleman_wunsch(first, second, substitution, top, left, scores, diagonal, block, gap) -> scores: one anti-diagonal
// of blocks of the matrix of scores of global alignment.
#include <algorithm>
#include <array>
#include <vector>

#include "operands.hpp"
#include "parallel.hpp"

// Vectors are never passed to a function that is not inlined.
#pragma GCC diagnostic ignored "-Wpsabi"

using namespace polymux::kernels;

namespace {

constexpr uint64_t kWidth = 8;
typedef int32_t Scores __attribute__((vector_size(4 * kWidth)));
typedef uint32_t Wrapping __attribute__((vector_size(4 * kWidth)));

// Sums that may overflow, as they do on other devices: in unsigned numbers.
[[gnu::always_inline]] inline int32_t plus(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
}
[[gnu::always_inline]] inline int32_t minus(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<uint32_t>(a) - static_cast<uint32_t>(b));
}
[[gnu::always_inline]] inline Scores plus(const Scores& a, const Scores& b) {
  return reinterpret_cast<Scores>(reinterpret_cast<Wrapping>(a) + reinterpret_cast<Wrapping>(b));
}
[[gnu::always_inline]] inline Scores minus(const Scores& a, const Scores& b) {
  return reinterpret_cast<Scores>(reinterpret_cast<Wrapping>(a) - reinterpret_cast<Wrapping>(b));
}
[[gnu::always_inline]] inline Scores larger(const Scores& a, const Scores& b) { return a > b ? a : b; }
[[gnu::always_inline]] inline Scores load(const int32_t* from) {
  Scores value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// One row of a block: out[j] = max(above[j - 1] + match[j], above[j] - gap, out[j - 1] - gap), out[-1] given.
// The chain through out[j - 1] is a running maximum of what the other two give, with j gaps added to element j.
[[gnu::always_inline]] inline void fill_row_of(const int32_t* above, const int32_t* match, int32_t gap, int32_t* out,
                                               uint64_t n) {
  const Scores lowest = Scores{} + INT32_MIN;
  Scores gaps{};  // of the element within the row
  for (uint64_t lane = 0; lane < kWidth; ++lane) {
    gaps[lane] = gap * static_cast<int32_t>(lane);
  }
  const Scores step = Scores{} + gap * static_cast<int32_t>(kWidth), one = Scores{} + gap;
  Scores running = Scores{} + minus(out[-1], gap);
  uint64_t j = 0;
  for (; j + kWidth <= n; j += kWidth) {
    Scores best = larger(plus(load(above + j - 1), load(match + j)), minus(load(above + j), one));
    best = plus(best, gaps);
    best = larger(best, __builtin_shuffle(best, lowest, Scores{8, 0, 1, 2, 3, 4, 5, 6}));
    best = larger(best, __builtin_shuffle(best, lowest, Scores{8, 8, 0, 1, 2, 3, 4, 5}));
    best = larger(best, __builtin_shuffle(best, lowest, Scores{8, 8, 8, 8, 0, 1, 2, 3}));
    best = larger(best, running);
    running = __builtin_shuffle(best, Scores{7, 7, 7, 7, 7, 7, 7, 7});
    const Scores result = minus(best, gaps);
    std::memcpy(out + j, &result, sizeof result);
    gaps = plus(gaps, step);
  }
  for (; j < n; ++j) {
    out[j] = std::max(std::max(plus(above[static_cast<int64_t>(j) - 1], match[j]), minus(above[j], gap)),
                      minus(out[static_cast<int64_t>(j) - 1], gap));
  }
}

POLYMUX_VECTOR_CLONES void fill_row(const int32_t* above, const int32_t* match, int32_t gap, int32_t* out, uint64_t n) {
  fill_row_of(above, match, gap, out, n);
}

struct Matrix {
  const uint8_t *first, *second;
  const int32_t *substitution, *top, *left;
  int32_t* scores;
  uint64_t rows, columns, letters, block;
  int32_t gap;

  uint64_t blocks_down() const { return std::max<uint64_t>((rows + block - 1) / block, 1); }
  uint64_t blocks_across() const { return std::max<uint64_t>((columns + block - 1) / block, 1); }
};

// A block's scores; `profile` has room for what each letter scores against the block's part of the second sequence.
void fill_block(const Matrix& m, uint64_t down, uint64_t across, std::vector<int32_t>& profile) {
  const uint64_t stride = m.columns + 1, row = down * m.block, column = across * m.block;
  const uint64_t rows = std::min(m.block, m.rows - row), columns = std::min(m.block, m.columns - column);
  if (down == 0) {
    const uint64_t begin = column + (across == 0 ? 0 : 1);
    std::copy(m.top + begin, m.top + column + columns + 1, m.scores + begin);
  }
  if (across == 0) {
    for (uint64_t r = row + 1; r <= row + rows; ++r) {
      m.scores[r * stride] = m.left[r];
    }
  }
  std::array<bool, 256> known{};
  for (uint64_t r = row; r < row + rows; ++r) {
    const uint64_t letter = m.first[r];
    int32_t* match = profile.data() + letter * m.block;
    if (!known[letter]) {
      const int32_t* line = m.substitution + letter * m.letters;
      for (uint64_t c = 0; c < columns; ++c) {
        match[c] = line[m.second[column + c]];
      }
      known[letter] = true;
    }
    int32_t* out = m.scores + (r + 1) * stride + column + 1;
    fill_row(out - stride, match, m.gap, out, columns);
  }
}

constexpr uint64_t kGrainCells = uint64_t{1} << 18;  // worth a thread of their own

void fill_diagonal(uint32_t threads, const Matrix& m, uint64_t diagonal) {
  const uint64_t begin = diagonal < m.blocks_across() ? 0 : diagonal - m.blocks_across() + 1;
  const uint64_t end = std::min(diagonal + 1, m.blocks_down());
  parallel_for(threads, end - begin, kGrainCells / (m.block * m.block) + 1, [&](uint64_t from, uint64_t to) {
    std::vector<int32_t> profile(m.letters * m.block);
    for (uint64_t down = begin + from; down < begin + to; ++down) {
      fill_block(m, down, diagonal - down, profile);
    }
  });
}

// Every letter has a row in the table of substitutions, at least those that this task reads.
void require_letters(const Array& sequence, uint64_t begin, uint64_t end, uint64_t letters) {
  const uint8_t* text = sequence.as<uint8_t>();
  end = std::min(end, sequence.count);
  for (uint64_t i = begin; i < end; ++i) {
    if (text[i] >= letters) {
      refuse(std::string(sequence.name) + "[" + std::to_string(i) + "] is " + std::to_string(text[i]) +
             ", expected less than " + std::to_string(letters) + ", the letters that substitution has");
    }
  }
}

void require_scalars(int64_t block, int64_t gap) {
  if (block < 16 || block > 256 || block % 16 != 0) {
    refuse("block is " + std::to_string(block) + ", expected a multiple of 16 from 16 to 256");
  }
  if (gap < -1'000'000 || gap > 1'000'000) {
    refuse("gap is " + std::to_string(gap) + ", expected -1000000 to 1000000");
  }
}

}  // namespace

POLYMUX_KERNEL(needleman_wunsch) {
  return run(call, [](Operands& operands) {
    const Array first = operands.buffer("first"), second = operands.buffer("second"),
                substitution = operands.buffer("substitution"), top = operands.buffer("top"),
                left = operands.buffer("left"), scores = operands.buffer("scores"),
                scores_out = operands.buffer("scores_out");
    operands.finish();
    const auto diagonal = operands.scalar<int64_t>("diagonal"), block = operands.scalar<int64_t>("block"),
               gap = operands.scalar<int64_t>("gap");
    require_dtype(first, {POLYMUX_U8});
    require_dtype(second, {POLYMUX_U8});
    for (const Array* numbers : {&substitution, &top, &left, &scores, &scores_out}) {
      require_dtype(*numbers, {POLYMUX_I32});
    }
    require_rank(first, 1, "(letters,)");
    require_rank(second, 1, "(letters,)");
    require_rank(substitution, 2, "(letters, letters)");
    const int64_t letters = substitution.shape()[0], rows = first.shape()[0], columns = second.shape()[0];
    if (letters < 1 || letters > 256 || substitution.shape()[1] != letters) {
      refuse("substitution has shape " + shape_text(substitution.shape()) + ", expected a square of 1 to 256 letters");
    }
    const int64_t across[] = {columns + 1}, down[] = {rows + 1}, matrix[] = {rows + 1, columns + 1};
    require_shape(top, across, "one more than second");
    require_shape(left, down, "one more than first");
    require_shape(scores, matrix, "one more than first and second");
    require_same_shape(scores_out, scores);
    if (scores_out.data != scores.data) {
      refuse("scores_out must be the buffer scores: the matrix is filled in place");
    }
    for (const Array* input : {&first, &second, &substitution, &top, &left}) {
      require_apart(scores_out, *input);
    }
    require_scalars(block, gap);
    const auto b = static_cast<uint64_t>(block);
    const Matrix m{first.as<uint8_t>(),
                   second.as<uint8_t>(),
                   substitution.as<int32_t>(),
                   top.as<int32_t>(),
                   left.as<int32_t>(),
                   scores_out.as<int32_t>(),
                   first.count,
                   second.count,
                   static_cast<uint64_t>(letters),
                   b,
                   static_cast<int32_t>(gap)};
    const auto diagonals = static_cast<int64_t>(m.blocks_down() + m.blocks_across() - 1);
    if (diagonal < 0 || diagonal >= diagonals) {
      refuse("diagonal is " + std::to_string(diagonal) + ", expected 0 to " + std::to_string(diagonals - 1) +
             " for scores of shape " + shape_text(scores.shape()) + " in blocks of " + std::to_string(block));
    }
    const auto d = static_cast<uint64_t>(diagonal);
    require_letters(first, d < m.blocks_across() ? 0 : (d - m.blocks_across() + 1) * b, (d + 1) * b, m.letters);
    require_letters(second, d < m.blocks_down() ? 0 : (d - m.blocks_down() + 1) * b, (d + 1) * b, m.letters);
    fill_diagonal(operands.threads(), m, d);
  });
}
