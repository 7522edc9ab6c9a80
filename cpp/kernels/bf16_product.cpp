// c = a @ b of single precision with factors rounded to bfloat16, in the calling thread, by the dot products of
// AVX512-BF16: each adds products of two neighbouring terms to sums of single precision. Called by
// polymux/kernel/chunks/native_chunk.py.
//
// Blocks as in K. Goto, R. A. van de Geijn: Anatomy of High-Performance Matrix Multiplication. ACM TOMS 34(3), 2008: a
// panel of b lies in the first cache while the rows of a block of a, which the second cache holds, pass by. Both are
// packed (and rounded) so that what is read together lies together: pairs of terms, for kRows rows or kColumns columns.
#if defined(__x86_64__)
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 takes the undefined vectors of its own intrinsics for uninitialized ones (its bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>

#define POLYMUX_BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))

namespace {

constexpr int64_t kRows = 14;     // of the block in registers: 28 sums, and what is read
constexpr int64_t kColumns = 32;  // two vectors
constexpr int64_t kDepth = 512;   // terms of the sums at a time
constexpr int64_t kBlockRows = 20 * kRows;
constexpr int64_t kBlockColumns = 32 * kColumns;
constexpr std::align_val_t kLine{64};

struct Free {
  void operator()(uint32_t* memory) const { ::operator delete[](memory, kLine); }
};
using Pairs = std::unique_ptr<uint32_t[], Free>;

Pairs pairs(int64_t count) {
  return Pairs(static_cast<uint32_t*>(::operator new[](static_cast<std::size_t>(count) * 4, kLine, std::nothrow)));
}

int64_t blocks(int64_t extent, int64_t block) { return (extent + block - 1) / block; }

// Sixteen numbers of memory, of which the first `count` count; the others are 0.
POLYMUX_BF16 inline __m512 numbers(const float* from, int64_t count) {
  if (count >= 16) return _mm512_loadu_ps(from);
  if (count <= 0) return _mm512_setzero_ps();
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1), from);
}

POLYMUX_BF16 inline __m512i rounded(__m512 values) {
  return _mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(values)));
}

// into[panel][pair][kColumns]: terms 2 pair and 2 pair + 1 of a column in one word.
POLYMUX_BF16 void pack_columns(const float* b, int64_t step, int64_t depth, int64_t n, uint32_t* into) {
  for (int64_t column = 0; column < n; column += kColumns) {
    for (int64_t k = 0; k < depth; k += 2) {
      for (int64_t v = 0; v < kColumns; v += 16, into += 16) {
        const int64_t count = n - column - v;
        const float* from = b + k * step + column + v;
        const __m512i low = rounded(numbers(from, count));
        const __m512i high = k + 1 < depth ? rounded(numbers(from + step, count)) : _mm512_setzero_si512();
        _mm512_store_si512(into, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
      }
    }
  }
}

// into[block][pair][kRows].
POLYMUX_BF16 void pack_rows(const float* a, int64_t step, int64_t m, int64_t depth, uint32_t* into) {
  const int64_t pairs_of_block = (depth + 1) / 2;
  for (int64_t row0 = 0; row0 < m; row0 += kRows, into += pairs_of_block * kRows) {
    for (int64_t r = 0; r < kRows; ++r) {
      const bool inside = row0 + r < m;
      for (int64_t k = 0; k < depth; k += 16) {
        uint32_t words[8] = {};
        if (inside) {
          const __m256bh sixteen = _mm512_cvtneps_pbh(numbers(a + (row0 + r) * step + k, depth - k));
          std::memcpy(words, &sixteen, sizeof(words));
        }
        const int64_t count = std::min<int64_t>(8, pairs_of_block - k / 2);
        for (int64_t p = 0; p < count; ++p) into[(k / 2 + p) * kRows + r] = words[p];
      }
    }
  }
}

// c (rows, columns of it) = or += the product of a packed block of rows and a packed panel.
POLYMUX_BF16 void multiply_block(const uint32_t* a, const uint32_t* b, int64_t count, float* c, int64_t step,
                                 int64_t rows, int64_t columns, bool more) {
  __m512 sums[kRows][2];
#pragma GCC unroll 14
  for (int64_t r = 0; r < kRows; ++r) sums[r][0] = sums[r][1] = _mm512_setzero_ps();
  for (int64_t p = 0; p < count; ++p, a += kRows, b += kColumns) {
    const auto left = reinterpret_cast<__m512bh>(_mm512_load_si512(b));
    const auto right = reinterpret_cast<__m512bh>(_mm512_load_si512(b + 16));
#pragma GCC unroll 14
    for (int64_t r = 0; r < kRows; ++r) {
      const auto factor = reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(a[r])));
      sums[r][0] = _mm512_dpbf16_ps(sums[r][0], factor, left);
      sums[r][1] = _mm512_dpbf16_ps(sums[r][1], factor, right);
    }
  }
  const auto lanes = [&](int64_t from) {
    const int64_t valid = std::clamp<int64_t>(columns - from, 0, 16);
    return static_cast<__mmask16>((1u << valid) - 1);
  };
  const __mmask16 masks[2] = {lanes(0), lanes(16)};
#pragma GCC unroll 14
  for (int64_t r = 0; r < kRows; ++r) {
    if (r >= rows) break;
    for (int v = 0; v < 2; ++v) {
      float* into = c + r * step + 16 * v;
      __m512 sum = sums[r][v];
      if (more) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(masks[v], into));
      _mm512_mask_storeu_ps(into, masks[v], sum);
    }
  }
}

}  // namespace

// Whether this processor can do it.
extern "C" __attribute__((visibility("default"))) int polymux_bf16_is_there() {
  return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl");
}

// Rows of a, b and c are a_step, b_step and c_step numbers apart. Returns 0, or 1 when there is no memory for the
// packed blocks; nothing was written then.
extern "C" __attribute__((visibility("default"))) int polymux_bf16_multiply(int64_t m, int64_t n, int64_t k,
                                                                            const float* a, int64_t a_step,
                                                                            const float* b, int64_t b_step, float* c,
                                                                            int64_t c_step) {
  if (k == 0) {
    for (int64_t row = 0; row < m; ++row) std::fill_n(c + row * c_step, n, 0.0f);
    return 0;
  }
  const int64_t most_pairs = (std::min(k, kDepth) + 1) / 2;
  const Pairs columns = pairs(blocks(std::min(n, kBlockColumns), kColumns) * kColumns * most_pairs);
  const Pairs rows = pairs(blocks(std::min(m, kBlockRows), kRows) * kRows * most_pairs);
  if (!columns || !rows) return 1;
  for (int64_t j0 = 0; j0 < n; j0 += kBlockColumns) {
    const int64_t width = std::min(kBlockColumns, n - j0);
    for (int64_t k0 = 0; k0 < k; k0 += kDepth) {
      const int64_t depth = std::min(kDepth, k - k0), count = (depth + 1) / 2;
      pack_columns(b + k0 * b_step + j0, b_step, depth, width, columns.get());
      for (int64_t i0 = 0; i0 < m; i0 += kBlockRows) {
        const int64_t height = std::min(kBlockRows, m - i0);
        pack_rows(a + i0 * a_step + k0, a_step, height, depth, rows.get());
        for (int64_t j = 0; j < width; j += kColumns) {
          for (int64_t i = 0; i < height; i += kRows) {
            multiply_block(rows.get() + i / kRows * count * kRows, columns.get() + j / kColumns * count * kColumns,
                           count, c + (i0 + i) * c_step + j0 + j, c_step, std::min(kRows, height - i),
                           std::min(kColumns, width - j), k0 > 0);
          }
        }
      }
    }
  }
  return 0;
}
#else
#include <cstdint>

extern "C" __attribute__((visibility("default"))) int polymux_bf16_is_there() { return 0; }

extern "C" __attribute__((visibility("default"))) int polymux_bf16_multiply(int64_t, int64_t, int64_t, const float*,
                                                                            int64_t, const float*, int64_t, float*,
                                                                            int64_t) {
  return 1;
}
#endif
