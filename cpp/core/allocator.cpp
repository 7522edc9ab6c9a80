#include "allocator.hpp"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <string>

namespace polymux {
namespace {

constexpr uint64_t align_up(uint64_t value, uint64_t alignment) { return (value + alignment - 1) & ~(alignment - 1); }

uint64_t checked_base(uint64_t base, uint64_t nbytes) {
  if (base % Allocator::kPageNbytes != 0) {
    throw std::invalid_argument("allocator base " + std::to_string(base) + " is not a multiple of 4096");
  }
  if (base >= kMaxNbytes || nbytes >= kMaxNbytes - base) {
    throw std::invalid_argument("allocator range of " + std::to_string(nbytes) + " bytes at " + std::to_string(base) +
                                " does not end below 2^48");
  }
  return base;
}

bool is_free(BlockState state) { return state != BlockState::kLive; }

}  // namespace

Allocator::Allocator(uint64_t base, uint64_t nbytes)
    : base_(checked_base(base, nbytes)), nbytes_(nbytes / kGranule * kGranule), bins_(blocks_) {
  top_ = first_ = blocks_.create(base_, nbytes_, BlockState::kTop);
}

std::optional<uint64_t> Allocator::allocate(uint64_t nbytes, uint64_t alignment) {
  if (!std::has_single_bit(alignment) || alignment > kMaxAlignment) {
    throw std::invalid_argument("alignment " + std::to_string(alignment) + " is not a power of two of at most 2097152");
  }
  if (nbytes > nbytes_) return std::nullopt;
  nbytes = align_up(std::max<uint64_t>(nbytes, 1), kGranule);
  alignment = std::max(alignment, kGranule);
  if (nbytes >= kLargeNbytes) {
    nbytes = align_up(nbytes, kPageNbytes);
    alignment = std::max(alignment, kPageNbytes);
  }
  if (const auto offset = take_quick(nbytes, alignment)) return offset;
  blocks_.reserve(2);  // the padding before and the rest after
  index_.reserve_one();
  const BlockId id = find(nbytes, alignment);
  if (id == kNoBlock) return std::nullopt;
  return carve(id, nbytes, alignment);
}

bool Allocator::release(uint64_t offset) {
  const BlockId id = index_.find(offset);
  if (id == kNoBlock || blocks_[id].state != BlockState::kLive) return false;
  Block& block = blocks_[id];
  live_nbytes_ -= block.nbytes;
  --live_blocks_;
  QuickList& list = quick_list(block.nbytes);
  if (list.nbytes != block.nbytes) {
    flush(list);
    list.nbytes = block.nbytes;
  }
  block.state = BlockState::kQuick;
  block.list_next = list.head;
  list.head = id;
  if (++quick_blocks_ > kMaxQuickBlocks) consolidate();
  return true;
}

uint64_t Allocator::usable_nbytes(uint64_t offset) const {
  const BlockId id = index_.find(offset);
  return id == kNoBlock || is_free(blocks_[id].state) ? 0 : blocks_[id].nbytes;
}

Allocator::Stats Allocator::stats() const {
  uint64_t largest = 0;
  for_each_free([&](uint64_t, uint64_t nbytes) { largest = std::max(largest, nbytes); });
  return Stats{live_nbytes_, live_blocks_, nbytes_ - live_nbytes_, largest, peak_nbytes_};
}

void Allocator::for_each_free(const std::function<void(uint64_t, uint64_t)>& visit) const {
  uint64_t start = 0;
  uint64_t run = 0;
  for (BlockId id = first_; id != kNoBlock; id = blocks_[id].next) {
    const Block& block = blocks_[id];
    if (is_free(block.state)) {
      if (run == 0) start = block.offset;
      run += block.nbytes;
    } else if (run != 0) {
      visit(start, run);
      run = 0;
    }
  }
  if (run != 0) visit(start, run);
}

Allocator::QuickList& Allocator::quick_list(uint64_t nbytes) {
  const uint64_t key = nbytes < kLargeNbytes ? nbytes / kGranule : nbytes / kPageNbytes;
  return quick_[(key * 0x9E3779B97F4A7C15ull) >> 56];
}

std::optional<uint64_t> Allocator::take_quick(uint64_t nbytes, uint64_t alignment) {
  QuickList& list = quick_list(nbytes);
  if (list.nbytes != nbytes || list.head == kNoBlock) return std::nullopt;
  Block& block = blocks_[list.head];
  if (block.offset % alignment != 0) return std::nullopt;
  list.head = block.list_next;
  --quick_blocks_;
  block.state = BlockState::kLive;
  count_live(nbytes);
  return block.offset;
}

// The wilderness comes last, and a walk over everything only where alignment makes best fit miss.
BlockId Allocator::find(uint64_t nbytes, uint64_t alignment) {
  BlockId id = find_binned(nbytes, alignment);
  if (id != kNoBlock) return id;
  if (quick_blocks_ != 0) {
    consolidate();
    id = find_binned(nbytes, alignment);
    if (id != kNoBlock) return id;
  }
  if (fits(top_, nbytes, alignment)) return top_;
  return alignment > kGranule ? find_by_walk(nbytes, alignment) : kNoBlock;
}

BlockId Allocator::find_binned(uint64_t nbytes, uint64_t alignment) const {
  BlockId id = bins_.best(nbytes);
  if (id == kNoBlock || fits(id, nbytes, alignment)) return id;
  return bins_.best(nbytes + alignment - kGranule);
}

BlockId Allocator::find_by_walk(uint64_t nbytes, uint64_t alignment) const {
  BlockId found = kNoBlock;
  for (BlockId id = first_; id != kNoBlock; id = blocks_[id].next) {
    if (blocks_[id].state != BlockState::kBinned || !fits(id, nbytes, alignment)) continue;
    if (found == kNoBlock || blocks_[id].nbytes < blocks_[found].nbytes) found = id;
  }
  return found;
}

bool Allocator::fits(BlockId id, uint64_t nbytes, uint64_t alignment) const {
  const Block& block = blocks_[id];
  const uint64_t padding = align_up(block.offset, alignment) - block.offset;
  return padding <= block.nbytes && nbytes <= block.nbytes - padding;
}

// Cuts the request out of a free block; what is before and after goes to the bins (or stays the top).
uint64_t Allocator::carve(BlockId id, uint64_t nbytes, uint64_t alignment) {
  const bool from_top = id == top_;
  if (!from_top) bins_.remove(id);
  const uint64_t padding = align_up(blocks_[id].offset, alignment) - blocks_[id].offset;
  if (padding != 0) {
    const BlockId before = id;
    id = split(before, padding);
    bins_.insert(before);
  }
  if (from_top || blocks_[id].nbytes != nbytes) {
    const BlockId rest = split(id, nbytes);
    if (from_top) {
      top_ = rest;
      blocks_[rest].state = BlockState::kTop;
    } else {
      bins_.insert(rest);
    }
  }
  blocks_[id].state = BlockState::kLive;
  index_.insert(blocks_[id].offset, id);
  count_live(nbytes);
  return blocks_[id].offset;
}

// Shortens the block to `nbytes` and returns a new block of the rest, which belongs to no list yet.
BlockId Allocator::split(BlockId id, uint64_t nbytes) {
  const BlockId rest = blocks_.create(blocks_[id].offset + nbytes, blocks_[id].nbytes - nbytes, blocks_[id].state);
  Block& block = blocks_[id];
  block.nbytes = nbytes;
  blocks_[rest].prev = id;
  blocks_[rest].next = block.next;
  if (block.next != kNoBlock) blocks_[block.next].prev = rest;
  block.next = rest;
  return rest;
}

void Allocator::flush(QuickList& list) {
  while (list.head != kNoBlock) {
    const BlockId id = list.head;
    list.head = blocks_[id].list_next;
    --quick_blocks_;
    coalesce(id);
  }
}

void Allocator::consolidate() {
  for (QuickList& list : quick_) flush(list);
}

// Turns a quick block into a free one joined with its free neighbours.
void Allocator::coalesce(BlockId id) {
  index_.erase(blocks_[id].offset);
  const BlockId prev = blocks_[id].prev;
  if (prev != kNoBlock && blocks_[prev].state == BlockState::kBinned) {
    bins_.remove(prev);
    absorb_next(prev);
    id = prev;
  }
  const BlockId next = blocks_[id].next;
  if (next == top_) {
    absorb_next(id);
    top_ = id;
    blocks_[id].state = BlockState::kTop;
    return;
  }
  if (blocks_[next].state == BlockState::kBinned) {
    bins_.remove(next);
    absorb_next(id);
  }
  bins_.insert(id);
}

void Allocator::absorb_next(BlockId id) {
  const BlockId gone = blocks_[id].next;
  blocks_[id].nbytes += blocks_[gone].nbytes;
  blocks_[id].next = blocks_[gone].next;
  if (blocks_[id].next != kNoBlock) blocks_[blocks_[id].next].prev = id;
  blocks_.destroy(gone);
}

void Allocator::count_live(uint64_t nbytes) {
  live_nbytes_ += nbytes;
  ++live_blocks_;
  peak_nbytes_ = std::max(peak_nbytes_, live_nbytes_);
}

bool Allocator::check() const {
  uint64_t at = base_;
  uint64_t live_nbytes = 0;
  std::size_t count = 0, live = 0, quick = 0, binned = 0;
  BlockId before = kNoBlock;
  for (BlockId id = first_; id != kNoBlock; before = id, id = blocks_[id].next) {
    const Block& block = blocks_[id];
    if (++count > blocks_.used_count() || block.offset != at || block.prev != before) return false;
    if ((block.state == BlockState::kTop) != (id == top_)) return false;
    if (id != top_ && (block.nbytes == 0 || block.nbytes % kGranule != 0)) return false;
    const bool indexed = block.state == BlockState::kLive || block.state == BlockState::kQuick;
    if (indexed && index_.find(block.offset) != id) return false;
    live += block.state == BlockState::kLive;
    quick += block.state == BlockState::kQuick;
    binned += block.state == BlockState::kBinned;
    if (block.state == BlockState::kLive) live_nbytes += block.nbytes;
    const bool joinable = block.state == BlockState::kBinned || id == top_;
    if (joinable && before != kNoBlock && blocks_[before].state == BlockState::kBinned) return false;
    at = block.end();
  }
  for (const QuickList& list : quick_) {
    for (BlockId id = list.head; id != kNoBlock; id = blocks_[id].list_next) {
      if (blocks_[id].state != BlockState::kQuick || blocks_[id].nbytes != list.nbytes) return false;
      --quick;
    }
  }
  return before == top_ && at == base_ + nbytes_ && count == blocks_.used_count() && quick == 0 &&
         live == live_blocks_ && live_nbytes == live_nbytes_ && index_.size() == live + quick_blocks_ &&
         binned == bins_.count() && bins_.check();
}

}  // namespace polymux
