// Reductions whose result depends on the data alone: fixed blocks, fixed lanes, one order of addition, whatever the
// number of threads.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel.hpp"

namespace polymux::kernels {

inline constexpr uint64_t kBlock = 1 << 14;      // elements reduced into one partial result
inline constexpr uint64_t kLanes = 32;           // independent accumulators within a block
inline constexpr uint64_t kBlockGrain = 1 << 5;  // blocks worth a thread of their own

// block(begin, end) -> Acc reduces elements [begin, end); join(Acc, Acc) -> Acc.
template <class Acc, class Block, class Join>
Acc reduce_blocks(uint32_t threads, uint64_t count, Acc identity, Block block, Join join) {
  const uint64_t n_blocks = (count + kBlock - 1) / kBlock;
  std::vector<Acc> partial(n_blocks);
  parallel_for(threads, n_blocks, kBlockGrain, [&](uint64_t begin, uint64_t end) {
    for (uint64_t i = begin; i < end; ++i) {
      partial[i] = block(i * kBlock, std::min(count, (i + 1) * kBlock));
    }
  });
  Acc total = identity;
  for (const Acc& value : partial) {
    total = join(total, value);
  }
  return total;
}

}  // namespace polymux::kernels
