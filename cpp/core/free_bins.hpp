// Free blocks by size: exact bins for small ones, bitwise tries for large ones; best fit from both.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "block_table.hpp"

namespace polymux {

constexpr uint64_t kGranule = 64;            // every offset and size is a multiple of it
constexpr uint64_t kLargeNbytes = 64 << 10;  // from here on: tries, and requests in whole pages
constexpr uint64_t kMaxNbytes = uint64_t{1} << 48;

// References
// ----------
// D. Lea, "A Memory Allocator" (2000): exact small bins, tree bins, best fit, wilderness preservation.
class FreeBins {
 public:
  explicit FreeBins(BlockTable& blocks);

  void insert(BlockId id);
  void remove(BlockId id);
  // The smallest free block of at least `nbytes` (the latest freed among equals), or kNoBlock.
  BlockId best(uint64_t nbytes) const;

  std::size_t count() const { return count_; }
  bool check() const;

 private:
  static constexpr std::size_t kSmallBins = kLargeNbytes / kGranule;
  static constexpr std::size_t kWords = kSmallBins / 64;
  static constexpr std::size_t kTries = 64;  // two for each power of two from 64 KiB below 2^48

  BlockId best_small(uint64_t nbytes) const;
  BlockId best_large(uint64_t nbytes) const;
  BlockId smallest_of(BlockId node) const;
  void insert_large(BlockId id);
  void remove_large(BlockId id);
  void replace_node(BlockId node, BlockId with);
  BlockId detach_leaf_below(BlockId node);
  bool check_small(std::size_t* seen) const;
  bool check_trie(std::size_t bin, BlockId node, BlockId parent, std::size_t* seen) const;

  BlockTable& blocks_;
  std::array<BlockId, kSmallBins> small_;
  std::array<uint64_t, kWords> small_map_{};
  uint64_t word_map_ = 0;  // which words of small_map_ have a bit
  std::array<BlockId, kTries> tries_;
  uint64_t trie_map_ = 0;
  std::size_t count_ = 0;
};

}  // namespace polymux
