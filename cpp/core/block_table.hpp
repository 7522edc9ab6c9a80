// The allocator's side table: one private record for every block of the managed range.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace polymux {

using BlockId = uint32_t;
constexpr BlockId kNoBlock = UINT32_MAX;

enum class BlockState : uint8_t {
  kUnused,  // the record is on the table's own free list
  kLive,    // handed out
  kQuick,   // just released; kept whole for the next request of the same size
  kBinned,  // free, coalesced, in a bin
  kTop,     // the wilderness: always the last block, possibly empty, never in a bin
};

// Boundary information (`prev`, `next`: neighbours by address) and the links of whatever list the
// block is in. None of it lives in the managed range, so nobody who can write there can corrupt it.
struct Block {
  uint64_t offset = 0;
  uint64_t nbytes = 0;
  BlockId prev = kNoBlock;
  BlockId next = kNoBlock;
  BlockId list_prev = kNoBlock;
  BlockId list_next = kNoBlock;
  BlockId parent = kNoBlock;  // size trie only; kNoBlock for a root and for a non-representative
  BlockId child[2] = {kNoBlock, kNoBlock};
  BlockState state = BlockState::kUnused;
  bool in_trie = false;  // stands in the trie for all free blocks of its size

  uint64_t end() const { return offset + nbytes; }
};

class BlockTable {
 public:
  Block& operator[](BlockId id) { return blocks_[id]; }
  const Block& operator[](BlockId id) const { return blocks_[id]; }

  // Makes the next `count` calls of create() unable to fail, so that callers change nothing half way.
  void reserve(uint32_t count) {
    if (unused_count_ >= count) return;
    const std::size_t needed = blocks_.size() + count;
    if (needed > blocks_.capacity()) blocks_.reserve(needed * 2);
  }

  BlockId create(uint64_t offset, uint64_t nbytes, BlockState state) {
    BlockId id = unused_;
    if (id == kNoBlock) {
      id = static_cast<BlockId>(blocks_.size());
      blocks_.emplace_back();
    } else {
      unused_ = blocks_[id].list_next;
      --unused_count_;
      blocks_[id] = Block{};
    }
    blocks_[id].offset = offset;
    blocks_[id].nbytes = nbytes;
    blocks_[id].state = state;
    return id;
  }

  void destroy(BlockId id) {
    blocks_[id].state = BlockState::kUnused;
    blocks_[id].list_next = unused_;
    unused_ = id;
    ++unused_count_;
  }

  std::size_t used_count() const { return blocks_.size() - unused_count_; }

 private:
  std::vector<Block> blocks_;
  BlockId unused_ = kNoBlock;
  std::size_t unused_count_ = 0;
};

}  // namespace polymux
