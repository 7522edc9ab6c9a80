// Allocation of offsets in a range that other processes can write to, with all state kept private.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include "block_table.hpp"
#include "free_bins.hpp"
#include "offset_index.hpp"

namespace polymux {

// A Doug-Lea-class allocator over [base, base + nbytes): exact bins for small sizes, tries for large
// ones, best fit, splitting, coalescing with both neighbours, the wilderness used last.
//
// What differs from malloc: headers and boundary tags are in a side table in the caller's own memory,
// so a peer that scribbles over the range cannot mislead the allocator; and a released block first
// waits whole in a quick list of its exact size, because the next request of that size then gets pages
// that are already touched (a first touch costs 6 to 10 times a reuse). Quick lists are coalesced when
// a request finds nothing in them or in the bins, so they never make a request fail.
//
// Not thread-safe. A call that throws std::bad_alloc has changed nothing.
class Allocator {
 public:
  static constexpr uint64_t kPageNbytes = 4096;
  static constexpr uint64_t kMaxAlignment = 2 << 20;

  // Throws std::invalid_argument when base is not page-aligned or the range is not below 2^48.
  Allocator(uint64_t base, uint64_t nbytes);
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;

  // The offset of a block of at least `nbytes` (0 counts as 1), or nullopt when it does not fit.
  // Sizes are rounded up to 64 bytes; from 64 KiB on to pages, and such blocks are page-aligned.
  // Throws std::invalid_argument when `alignment` is not a power of two of at most 2 MiB.
  std::optional<uint64_t> allocate(uint64_t nbytes, uint64_t alignment = kGranule);

  // False, and nothing changes, when `offset` is not the start of a live block.
  bool release(uint64_t offset);

  // The rounded size of the live block at `offset`, or 0 when there is none.
  uint64_t usable_nbytes(uint64_t offset) const;

  struct Stats {
    uint64_t live_nbytes;          // rounded sizes of the live blocks
    uint64_t live_blocks;          //
    uint64_t free_nbytes;          // live_nbytes + free_nbytes is the size of the range
    uint64_t largest_free_nbytes;  // longest run of free bytes
    uint64_t peak_nbytes;          // the largest live_nbytes so far
  };
  Stats stats() const;  // walks all blocks

  // Calls visit(offset, nbytes) for every maximal free run, by address.
  void for_each_free(const std::function<void(uint64_t, uint64_t)>& visit) const;

  // Whether all structures agree with each other; for tests.
  bool check() const;

 private:
  // Released blocks of one size, latest first, linked by list_next.
  struct QuickList {
    uint64_t nbytes = 0;
    BlockId head = kNoBlock;
  };
  static constexpr std::size_t kQuickLists = 256;
  static constexpr uint32_t kMaxQuickBlocks = 512;  // bounds the work of one consolidation

  QuickList& quick_list(uint64_t nbytes);
  std::optional<uint64_t> take_quick(uint64_t nbytes, uint64_t alignment);
  BlockId find(uint64_t nbytes, uint64_t alignment);
  BlockId find_binned(uint64_t nbytes, uint64_t alignment) const;
  BlockId find_by_walk(uint64_t nbytes, uint64_t alignment) const;
  bool fits(BlockId id, uint64_t nbytes, uint64_t alignment) const;
  uint64_t carve(BlockId id, uint64_t nbytes, uint64_t alignment);
  BlockId split(BlockId id, uint64_t nbytes);
  void flush(QuickList& list);
  void consolidate();
  void coalesce(BlockId id);
  void absorb_next(BlockId id);
  void count_live(uint64_t nbytes);

  const uint64_t base_;
  const uint64_t nbytes_;
  BlockTable blocks_;
  FreeBins bins_;
  OffsetIndex index_;
  std::array<QuickList, kQuickLists> quick_;
  uint32_t quick_blocks_ = 0;
  BlockId first_ = kNoBlock;
  BlockId top_ = kNoBlock;
  uint64_t live_nbytes_ = 0;
  uint64_t live_blocks_ = 0;
  uint64_t peak_nbytes_ = 0;
};

}  // namespace polymux
